//! The types behind a [`LockRequest`]: its targets, the future of [`acquire`](crate::LockRequest::acquire), and what a
//! leader gets.
//!
//! The body of [`lead`](crate::LockRequest::lead) gets a [`Term`], and a loop over a [`Campaign`] a [`Leadership`]. The
//! other names appear only in structs that store a request or a future, and in functions that take one. The targets are [`One`], [`Names`] and `Declared`, and
//! [`Acquiring`] is the future. Most programs call [`LockManager::lock`](crate::LockManager::lock) and its siblings,
//! and await the result.
//!
//! ```
//! use std::time::Duration;
//! use lock_core::request::{ByName, Names};
//! use lock_core::{LockManager, LockRequest};
//!
//! /// The settings of all locks of this service.
//! fn briefly<T: ByName>(request: LockRequest<T>) -> LockRequest<T> {
//!     request.ttl(Duration::from_secs(10)).wait(Duration::from_secs(1))
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), lock_core::LockError> {
//! let locks = LockManager::in_memory();
//! let transfer: LockRequest<Names> = briefly(locks.lock_all(["account:7", "account:3"]));
//! let order = briefly(locks.lock("order:42"));
//! assert_eq!(order.acquire().await?.remaining(), Duration::from_secs(10));
//! # transfer.acquire().await?.release().await
//! # }
//! ```

#[cfg(feature = "macros")]
mod declared;
pub(crate) mod lock_request;
mod set;
mod settings;

#[cfg(feature = "macros")]
pub use self::declared::Declared;
pub(crate) use self::lock_request::LockRequest;
pub use self::lock_request::{Acquiring, ByName, Names, One, OneLock, Target};
#[cfg(feature = "macros")]
pub(crate) use self::settings::{LONGEST_PERIOD, SHORTEST_PERIOD};
pub use crate::lead::{Campaign, Leadership, Term};
