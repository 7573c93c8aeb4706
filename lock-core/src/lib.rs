#![cfg_attr(docsrs, feature(doc_cfg))]
#![doc = include_str!("../README.md")]
#![cfg_attr(
    not(feature = "redis"),
    allow(
        dead_code,
        reason = "the keeper and its clocks serve backends on servers"
    )
)]

mod acquire;
mod backend;
mod clock;
mod counts;
mod dialect;
mod error;
mod foreign;
mod guard;
mod hold;
mod inbox;
mod keeper;
mod key;
mod lease;
mod manager;
#[cfg(test)]
mod model;
mod nesting;
mod nonce;
mod options;
mod request;
mod retry;
mod shared;
mod sync;
mod table;
mod token;
mod ttl;
mod url;
mod wait;
mod wire;

#[cfg(feature = "macros")]
#[doc(hidden)]
pub mod macro_support;

pub use counts::Counts;
pub use dialect::{Capabilities, Dialect, DialectFault, ReleaseBy};
pub use error::{BackendError, BackendErrorKind, Holder, LockError, ShutdownIncomplete};
pub use guard::{LockGuard, LockWatch, Lost};
pub use key::{LockName, NameFault};
pub use manager::{LockManager, LockManagerBuilder};
pub use options::Renew;
pub use request::LockRequest;
#[cfg(debug_assertions)]
#[doc(hidden)]
pub use sync::held_mutexes;
pub use token::{FencingToken, ParseTokenError};

#[cfg(feature = "macros")]
#[doc(inline)]
pub use lock_macros::distributed_lock;

/// The name of a lock from a template and expressions: for names that a template alone cannot
/// write, and for the builder.
///
/// `{}` takes the next expression, and `{variable}` or `{variable.field.0}` what is in scope.
/// All values are percent-encoded as those of [`distributed_lock`](macro@distributed_lock), so
/// that none can pass for another name. The result is a [`LockName`]; when a value is empty, each
/// acquire of it fails with [`LockError::InvalidName`].
///
/// ```
/// # use lock_core::{LockError, LockManager, distributed_lock, lock_name};
/// const TENANT: &str = "acme";
///
/// // A constant, and an option, which has no text of its own.
/// #[distributed_lock(name = lock_name!("cart:{TENANT}:{}", user.unwrap_or(0)))]
/// async fn empty_cart(user: Option<u64>) -> Result<(), LockError> {
///     Ok(())
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let locks = LockManager::in_memory();
/// let order = 7;
/// let guard = locks.lock(lock_name!("order:{order}:{}", "a:b")).acquire().await?;
/// assert_eq!(guard.key(), "lock:order:7:a%3Ab");
/// # locks.scope(empty_cart(None)).await
/// # }
/// ```
#[cfg(feature = "macros")]
#[macro_export]
macro_rules! lock_name {
    ($($template:tt)*) => {
        $crate::macro_support::__lock_name!($crate, $($template)*)
    };
}

/// Guides: how to use the library, what it promises, and how it works.
pub mod guide {
    #[cfg(feature = "macros")]
    pub mod attribute {
        #![doc = include_str!("../docs/attribute.md")]
    }

    #[cfg(feature = "macros")]
    pub mod coming_from {
        #![doc = include_str!("../docs/coming_from.md")]
    }

    pub mod guarantees {
        #![doc = include_str!("../docs/guarantees.md")]
    }

    pub mod redis {
        #![doc = include_str!("../docs/redis.md")]
    }

    pub mod dialects {
        #![doc = include_str!("../docs/dialects.md")]
    }

    pub mod migrating {
        #![doc = include_str!("../docs/migrating.md")]
    }

    pub mod protocol {
        #![doc = include_str!("../docs/protocol.md")]
    }

    pub mod failure_modes {
        #![doc = include_str!("../docs/failure_modes.md")]
    }
}
