//! Makes requests for declared locks.

use std::sync::Arc;

use super::LockManager;
use crate::request::{Declared, LockRequest};
use crate::typed::{
    ExclusiveLock, HeldMode, Lock, Permit, Read, ReadWriteLock, SemaphoreLock, Write,
};

impl LockManager {
    /// Makes a request for a declared lock with one holder. See [`Held`](crate::Held).
    ///
    /// ```
    /// # use lock_core::{Lock, LockError, LockManager};
    /// #[derive(Lock)]
    /// #[lock(name = "order:{order_id}")]
    /// struct OrderLock {
    ///     order_id: u64,
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let order = locks.hold(OrderLock { order_id: 7 }).acquire().await?;
    /// assert_eq!(order.order_id, 7);
    /// # Ok(())
    /// # }
    /// ```
    pub fn hold<L: ExclusiveLock>(&self, lock: L) -> LockRequest<Declared<L, Write>> {
        self.declared(lock)
    }

    /// Makes a request for a declared read-write lock, to hold it for reading. Readers hold it together.
    ///
    /// ```
    /// # use lock_core::{Lock, LockError, LockManager};
    /// #[derive(Lock)]
    /// #[lock(name = "stock:{0}", mode = read_write)]
    /// struct Stock(u64);
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let one = locks.hold_read(Stock(7)).acquire().await?;
    /// let other = locks.hold_read(Stock(7)).try_acquire().await?;
    /// assert!(other.is_some());
    /// # drop(one);
    /// # Ok(())
    /// # }
    /// ```
    pub fn hold_read<L: ReadWriteLock>(&self, lock: L) -> LockRequest<Declared<L, Read>> {
        self.declared(lock)
    }

    /// Makes a request for a declared read-write lock, to hold it for writing. A writer holds it alone.
    ///
    /// ```
    /// # use lock_core::{Lock, LockError, LockManager};
    /// #[derive(Lock)]
    /// #[lock(name = "stock:{0}", mode = read_write)]
    /// struct Stock(u64);
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let writer = locks.hold_write(Stock(7)).acquire().await?;
    /// assert!(locks.hold_read(Stock(7)).try_acquire().await?.is_none());
    /// # drop(writer);
    /// # Ok(())
    /// # }
    /// ```
    pub fn hold_write<L: ReadWriteLock>(&self, lock: L) -> LockRequest<Declared<L, Write>> {
        self.declared(lock)
    }

    /// Makes a request for a permit of a declared semaphore.
    ///
    /// ```
    /// # use lock_core::{Lock, LockError, LockManager};
    /// #[derive(Lock)]
    /// #[lock(name = "mailer", permits = 2)]
    /// struct Mailer;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let one = locks.hold_permit(Mailer).acquire().await?;
    /// let two = locks.hold_permit(Mailer).acquire().await?;
    /// assert!(locks.hold_permit(Mailer).try_acquire().await?.is_none());
    /// # drop((one, two));
    /// # Ok(())
    /// # }
    /// ```
    pub fn hold_permit<L: SemaphoreLock>(&self, lock: L) -> LockRequest<Declared<L, Permit>> {
        self.declared(lock)
    }

    fn declared<L: Lock, M: HeldMode>(&self, lock: L) -> LockRequest<Declared<L, M>> {
        LockRequest::of_declared(Arc::clone(&self.inner), lock)
    }
}
