//! The traits of declared locks.

use crate::manager::LockManager;
use crate::request::LockRequest;

/// The [kind](Lock::Kind) of a lock that one holder has at a time.
#[derive(Debug)]
pub enum Exclusive {}

/// The [kind](Lock::Kind) of a lock that is held for reading or for writing.
#[derive(Debug)]
pub enum ReadWrite {}

/// The [kind](Lock::Kind) of a lock with permits.
#[derive(Debug)]
pub enum Semaphore {}

/// A lock that is declared as a type. Derive it: `#[derive(Lock)]`.
///
/// ```
/// use lock_core::{Lock, LockManager};
///
/// /// Guards the payment of one order.
/// #[derive(Lock)]
/// #[lock(name = "order:{order_id}", ttl = "30s")]
/// struct OrderLock {
///     order_id: u64,
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lock_core::LockError> {
/// let locks = LockManager::in_memory();
/// let order = locks.hold(OrderLock { order_id: 7 }).acquire().await?;
/// assert_eq!(order.guard().key(), "lock:order:7");
/// # order.release().await
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a declared lock",
    label = "not a declared lock",
    note = "declare it: `#[derive(Lock)] #[lock(name = \"order:{{id}}\")] struct OrderLock {{ id: u64 }}`"
)]
pub trait Lock: Sized {
    /// How the lock is held: [`Exclusive`], [`ReadWrite`] or [`Semaphore`].
    type Kind;

    /// Makes the request for this lock.
    #[doc(hidden)]
    fn request(&self, locks: &LockManager) -> LockRequest;
}

/// A declared lock that one holder has at a time. Implemented for each such [`Lock`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an exclusive lock",
    label = "declared as another kind",
    note = "declare it without `mode` and `permits`, or take it with `read`, `write` or `permit`"
)]
pub trait ExclusiveLock: Lock<Kind = Exclusive> {}

#[diagnostic::do_not_recommend]
impl<L: Lock<Kind = Exclusive>> ExclusiveLock for L {}

/// A declared lock that is held for reading or for writing. Implemented for each such [`Lock`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a read-write lock",
    label = "declared as another kind",
    note = "declare it with `#[lock(.., mode = read_write)]`, or take it with `hold` or `permit`"
)]
pub trait ReadWriteLock: Lock<Kind = ReadWrite> {}

#[diagnostic::do_not_recommend]
impl<L: Lock<Kind = ReadWrite>> ReadWriteLock for L {}

/// A declared lock with permits. Implemented for each such [`Lock`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a semaphore",
    label = "declared as another kind",
    note = "declare it with `#[lock(.., permits = 4)]`, or take it with `hold`, `read` or `write`"
)]
pub trait SemaphoreLock: Lock<Kind = Semaphore> {}

#[diagnostic::do_not_recommend]
impl<L: Lock<Kind = Semaphore>> SemaphoreLock for L {}
