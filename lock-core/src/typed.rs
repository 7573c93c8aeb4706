//! Locks that are declared as types, and proof of holding them.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::time::Duration;

use crate::error::LockError;
use crate::guard::{HasGuard, LockGuard, LockWatch, Lost};
use crate::manager::LockManager;
use crate::protocol::fencing_token::FencingToken;

mod declared;
mod request;

pub use self::declared::{
    Exclusive, ExclusiveLock, Lock, ReadWrite, ReadWriteLock, Semaphore, SemaphoreLock,
};
pub use self::request::TypedRequest;

/// The mode of a [`Held`] lock that excludes all others.
#[derive(Debug)]
pub enum Write {}

/// The mode of a [`Held`] lock that several readers have together.
#[derive(Debug)]
pub enum Read {}

/// The mode of a [`Held`] lock that has permits of a semaphore.
#[derive(Debug)]
pub enum Permit {}

/// Proof that the declared lock `L` was acquired. A function that takes `&Held<L>` can be called under that lock
/// only: holding it is the only way to such a value.
///
/// The proof is not about time. The lease may have ended since, as that of any lock: see
/// [`is_lost`](Self::is_lost) and [`lost`](Self::lost). To refuse a late write, a resource has to check the
/// [fencing token](Self::fencing_token).
///
/// It derefs to the value that names the lock. So a function reads the id of an order from the proof, and cannot
/// mistake it for another one. Dropping it releases the lock.
///
/// ```
/// use lock_core::typed::Held;
/// use lock_core::{Lock, LockError, LockManager};
///
/// #[derive(Lock)]
/// #[lock(name = "order:{order_id}")]
/// struct OrderLock {
///     order_id: u64,
/// }
///
/// async fn bill(order: &Held<OrderLock>) -> u64 {
///     order.order_id
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let locks = LockManager::in_memory();
/// let order = locks.hold(OrderLock { order_id: 7 }).acquire().await?;
/// assert_eq!(bill(&order).await, 7);
/// order.release().await
/// # }
/// ```
#[must_use = "the lock is released as soon as the proof is dropped"]
pub struct Held<L, M = Write> {
    guard: LockGuard,
    lock: L,
    mode: PhantomData<fn() -> M>,
}

/// Makes the proof. It is no associated function, because the compiler would suggest that to users.
pub(crate) fn held<L, M>(lock: L, guard: LockGuard) -> Held<L, M> {
    Held {
        guard,
        lock,
        mode: PhantomData,
    }
}

impl<L, M> Held<L, M> {
    /// Returns the guard of the lock.
    pub fn guard(&self) -> &LockGuard {
        &self.guard
    }

    /// Returns the token of this grant, as [`LockGuard::fencing_token`] does.
    #[must_use]
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.guard.fencing_token()
    }

    /// Returns how long the lock is certainly held, as [`LockGuard::remaining`] does.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// Returns whether the lock is no longer certainly held, as [`LockGuard::is_lost`] does.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.guard.is_lost()
    }

    /// Returns a future that completes when the lock is lost, as [`LockGuard::lost`] does.
    ///
    /// # Panics
    /// As [`LockGuard::lost`].
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on the lock. A later future reports the same loss.
    pub fn lost(&self) -> Lost {
        self.guard.lost()
    }

    /// Returns a handle that shows the state of this lock and cannot release it.
    #[must_use]
    pub fn watch(&self) -> LockWatch {
        self.guard.watch()
    }

    /// Renews the lease to the whole ttl now, as [`LockGuard::renew`] does.
    ///
    /// # Errors
    /// As [`LockGuard::renew`].
    ///
    /// # Cancel safety
    /// A renewal whose future is dropped may or may not extend the lease.
    pub async fn renew(&self) -> Result<(), LockError> {
        self.guard.renew().await
    }

    /// Releases the lock and waits for the server's reply, as [`LockGuard::release`] does.
    ///
    /// # Errors
    /// As [`LockGuard::release`].
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock in the background.
    pub async fn release(self) -> Result<(), LockError> {
        self.guard.release().await
    }
}

impl<L: ReadWriteLock> Held<L, Write> {
    /// Makes the write lock a read lock, without a moment in which it is free, as [`LockGuard::downgrade`] does.
    ///
    /// # Errors
    /// As [`LockGuard::downgrade`]. After each error the lock is released, in the background.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock in the background.
    pub async fn downgrade(self) -> Result<Held<L, Read>, LockError> {
        let guard = self.guard.downgrade().await?;
        Ok(held(self.lock, guard))
    }
}

impl<L, M> Deref for Held<L, M> {
    type Target = L;

    fn deref(&self) -> &L {
        &self.lock
    }
}

impl<L, M> HasGuard for Held<L, M> {
    fn guard(&self) -> &LockGuard {
        &self.guard
    }

    fn guard_mut(&mut self) -> &mut LockGuard {
        &mut self.guard
    }
}

impl<L, M> fmt::Debug for Held<L, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Held").field(&self.guard).finish()
    }
}

mod sealed {
    pub trait Sealed<L> {}

    impl<L, M> Sealed<L> for crate::typed::Held<L, M> {}
}

/// Proof that `L` is held, in any mode. For functions that need the lock, and to which it does not matter
/// whether it is held for reading or for writing.
///
/// ```
/// use lock_core::typed::Holds;
/// use lock_core::{Lock, LockError, LockManager};
///
/// #[derive(Lock)]
/// #[lock(name = "stock:{sku}", mode = read_write)]
/// struct Stock {
///     sku: String,
/// }
///
/// async fn price(stock: &impl Holds<Stock>) -> usize {
///     stock.lock().sku.len()
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let locks = LockManager::in_memory();
/// let stock = locks.read(Stock { sku: "tea".into() }).acquire().await?;
/// assert_eq!(price(&stock).await, 3);
/// # stock.release().await
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not prove that `{L}` is held",
    label = "proves another lock, or none"
)]
pub trait Holds<L>: sealed::Sealed<L> {
    /// Returns the value that names the lock.
    fn lock(&self) -> &L;

    /// Returns the guard of the lock.
    fn guard(&self) -> &LockGuard;
}

impl<L, M> Holds<L> for Held<L, M> {
    fn lock(&self) -> &L {
        &self.lock
    }

    fn guard(&self) -> &LockGuard {
        &self.guard
    }
}

impl LockManager {
    /// Makes a request for a declared exclusive lock. Nothing is sent before it is acquired.
    ///
    /// See [`Held`] for an example.
    pub fn hold<L: ExclusiveLock>(&self, lock: L) -> TypedRequest<L, Write> {
        let request = lock.request(self);
        TypedRequest::new(lock, request)
    }

    /// Makes a request to hold a declared read-write lock for reading.
    ///
    /// See [`Holds`] for an example.
    pub fn read<L: ReadWriteLock>(&self, lock: L) -> TypedRequest<L, Read> {
        let request = lock.request(self).read();
        TypedRequest::new(lock, request)
    }

    /// Makes a request to hold a declared read-write lock for writing.
    pub fn write<L: ReadWriteLock>(&self, lock: L) -> TypedRequest<L, Write> {
        let request = lock.request(self).write();
        TypedRequest::new(lock, request)
    }

    /// Makes a request for permits of a declared semaphore.
    pub fn permit<L: SemaphoreLock>(&self, lock: L) -> TypedRequest<L, Permit> {
        let request = lock.request(self);
        TypedRequest::new(lock, request)
    }
}
