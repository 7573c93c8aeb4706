//! Locks that types declare, and the proof that one is held.
//!
//! A type that derives [`Lock`] says how its lock is named, who may hold it together, and for how long. A
//! [`Held<OrderLock>`](Held) proves that the lock is held, so that a function with such a parameter can't be called without
//! it. The guide [`typed_locks`](crate::guide::typed_locks) shows a service with declared locks.
//!
//! | Declared with | Taken with | The proof |
//! |---|---|---|
//! | nothing: [`ExclusiveLock`] | [`LockManager::hold`](crate::LockManager::hold) | `Held<L>` |
//! | `mode = read_write`: [`ReadWriteLock`] | [`hold_read`](crate::LockManager::hold_read), [`hold_write`](crate::LockManager::hold_write) | `Held<L, Read>`, `Held<L>` |
//! | `permits = 4`: [`SemaphoreLock`] | [`hold_permit`](crate::LockManager::hold_permit) | `Held<L, Permit>` |

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::time::Duration;

use crate::error::LockError;
use crate::guard::{Holding, LockGuard, LockWatch, LossSignal};
use lock_protocol::fencing_token::FencingToken;
use lock_protocol::ticket::LockTicket;

pub(crate) mod declaration;

#[cfg(test)]
use self::declaration::{Declaration, ExclusiveKind};
pub(crate) use self::declaration::{DefaultMode, HeldMode};
pub use self::declaration::{
    ExclusiveLock, Lock, Permit, Read, ReadWriteLock, SemaphoreLock, Write,
};
#[doc(inline)]
pub use lock_macros::Lock;

/// The proof that a declared lock is held: `L` says which lock, and `M` in which mode.
///
/// Only [`LockManager::hold`](crate::LockManager::hold), its siblings and the attribute make one. So a
/// function with a parameter of the type `&Held<OrderLock>` cannot be called without that lock. The value
/// derefs to `L`: the function reads the order's id from the proof, and it cannot be the id of another order.
///
/// The type does not prove that the lease still lives: see [`is_lost`](Self::is_lost), and the
/// [fencing token](Self::fencing_token). The guide [`typed_locks`](crate::guide::typed_locks) shows a
/// service with declared locks.
///
/// ```
/// # use lock_core::{Held, Lock, LockError, LockManager};
/// #[derive(Lock)]
/// #[lock(name = "order:{order_id}", ttl = "30s")]
/// struct OrderLock {
///     order_id: u64,
/// }
///
/// async fn charge(order: &Held<OrderLock>) -> String {
///     format!("charged order {}", order.order_id)
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let locks = LockManager::in_memory();
/// let order = locks.hold(OrderLock { order_id: 7 }).acquire().await?;
/// assert_eq!(charge(&order).await, "charged order 7");
/// order.release().await
/// # }
/// ```
#[must_use = "the lock is released as soon as the proof is dropped"]
pub struct Held<L, M = Write> {
    // Dropped first, so that the lock is released before what `L` holds is dropped.
    guard: LockGuard,
    lock: L,
    mode: PhantomData<fn() -> M>,
}

/// Makes the proof. It is no function of the type: the compiler would suggest that one to users.
pub(crate) fn prove<L, M>(lock: L, guard: LockGuard) -> Held<L, M> {
    Held {
        guard,
        lock,
        mode: PhantomData,
    }
}

/// Drops the lock, and returns what holds it.
pub(crate) fn guard_of<L, M>(held: Held<L, M>) -> LockGuard {
    held.guard
}

impl<L, M> Held<L, M> {
    /// Returns the guard of the lock.
    ///
    /// ```
    /// # use lock_core::{Lock, LockError, LockManager};
    /// # #[derive(Lock)]
    /// # #[lock(name = "order:{0}")]
    /// # struct OrderLock(u64);
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let order = locks.hold(OrderLock(7)).acquire().await?;
    /// assert_eq!(order.guard().key(), "lock:order:7");
    /// order.release().await
    /// # }
    /// ```
    pub fn guard(&self) -> &LockGuard {
        &self.guard
    }

    /// Returns the token of this grant, as [`LockGuard::fencing_token`] does.
    ///
    /// ```
    /// # use lock_core::{Lock, LockError, LockManager};
    /// # #[derive(Lock)]
    /// # #[lock(name = "order:{0}")]
    /// # struct OrderLock(u64);
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let first = locks.hold(OrderLock(7)).acquire().await?;
    /// let token = first.fencing_token();
    /// first.release().await?;
    /// let second = locks.hold(OrderLock(7)).acquire().await?;
    /// assert!(token.is_some() && second.fencing_token() > token);
    /// # second.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.guard.fencing_token()
    }

    /// Returns how long the lock is certainly held, as [`LockGuard::remaining`] does.
    ///
    /// ```
    /// # use lock_core::{Lock, LockError, LockManager};
    /// # use std::time::Duration;
    /// #[derive(Lock)]
    /// #[lock(name = "order:{0}", ttl = "20s")]
    /// struct OrderLock(u64);
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let order = locks.hold(OrderLock(7)).acquire().await?;
    /// assert_eq!(order.remaining(), Duration::from_secs(20));
    /// order.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guard.remaining()
    }

    /// Returns whether the lock is no longer certainly held, as [`LockGuard::is_lost`] does.
    ///
    /// ```
    /// # use lock_core::{Lock, LockError, LockManager, Renew};
    /// # use std::time::Duration;
    /// #[derive(Lock)]
    /// #[lock(name = "order:{0}", ttl = "100ms")]
    /// struct OrderLock(u64);
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let order = locks.hold(OrderLock(7)).renew(Renew::Never).acquire().await?;
    /// tokio::time::sleep(Duration::from_millis(150)).await;
    /// assert!(order.is_lost());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.guard.is_lost()
    }

    /// Returns a future that completes when the lock is lost, as [`LockGuard::lost`] does.
    ///
    /// ```
    /// # use lock_core::{Lock, LockError, LockManager, Renew};
    /// #[derive(Lock)]
    /// #[lock(name = "order:{0}", ttl = "100ms")]
    /// struct OrderLock(u64);
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let order = locks.hold(OrderLock(7)).renew(Renew::Never).acquire().await?;
    /// order.lost().await;
    /// assert!(order.is_lost());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// As [`LockGuard::lost`].
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on the lock. A later future reports the same loss.
    pub fn lost(&self) -> LossSignal {
        self.guard.lost()
    }

    /// Returns whether the lock is about to be lost, as [`LockGuard::is_at_risk`] does.
    ///
    /// ```
    /// # use lock_core::{Lock, LockError, LockManager};
    /// # #[derive(Lock)]
    /// # #[lock(name = "order:{0}")]
    /// # struct OrderLock(u64);
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let order = locks.hold(OrderLock(7)).acquire().await?;
    /// assert!(!order.is_at_risk());
    /// order.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn is_at_risk(&self) -> bool {
        self.guard.is_at_risk()
    }

    /// Returns a future that completes when the lock is at risk or lost, as [`LockGuard::at_risk`] does.
    ///
    /// ```
    /// # use lock_core::{Lock, LockError, LockManager};
    /// # #[derive(Lock)]
    /// # #[lock(name = "order:{0}")]
    /// # struct OrderLock(u64);
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), LockError> {
    /// # let (locks, faults) = lock_testing::in_memory_with_faults(LockManager::builder())?;
    /// let order = locks.hold(OrderLock(7)).acquire().await?;
    /// # let outage = || faults.down();
    /// outage();
    /// order.at_risk().await;
    /// assert!(order.is_at_risk() && !order.is_lost());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// As [`LockGuard::at_risk`].
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on the lock. A later future reports the same risk, if it lasts.
    pub fn at_risk(&self) -> LossSignal {
        self.guard.at_risk()
    }

    /// Returns a handle that shows the state of this lock and cannot release it.
    ///
    /// ```
    /// # use lock_core::{Lock, LockError, LockManager};
    /// # #[derive(Lock)]
    /// # #[lock(name = "order:{0}")]
    /// # struct OrderLock(u64);
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let order = locks.hold(OrderLock(7)).acquire().await?;
    /// let watch = order.watch();
    /// assert!(watch.is_held());
    /// order.release().await?;
    /// assert!(!watch.is_held());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn watch(&self) -> LockWatch {
        self.guard.watch()
    }

    /// Renews the lease to the whole ttl now, as [`LockGuard::renew`] does.
    ///
    /// ```
    /// # use lock_core::{Lock, LockError, LockManager, Renew};
    /// # use std::time::Duration;
    /// # #[derive(Lock)]
    /// # #[lock(name = "order:{0}")]
    /// # struct OrderLock(u64);
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let order = locks.hold(OrderLock(7)).renew(Renew::Never).acquire().await?;
    /// tokio::time::sleep(Duration::from_millis(100)).await;
    /// let before = order.remaining();
    /// order.renew().await?;
    /// assert!(order.remaining() > before);
    /// order.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`LockGuard::renew`].
    ///
    /// # Cancel safety
    /// A renewal whose future is dropped may or may not extend the lease.
    #[doc(alias = "extend")]
    pub async fn renew(&self) -> Result<(), LockError> {
        self.guard.renew().await
    }

    /// Hands the lock over, as [`LockGuard::into_ticket`] does. `locks.hold(..).resume(ticket)` makes a `Held` of the
    /// ticket again.
    ///
    /// ```
    /// # use lock_core::{Lock, LockError, LockManager};
    /// # use std::time::Duration;
    /// # #[derive(Lock)]
    /// # #[lock(name = "order:{0}")]
    /// # struct OrderLock(u64);
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let order = locks.hold(OrderLock(7)).acquire().await?;
    /// let ticket = order.into_ticket(Duration::from_secs(60)).await?;
    /// assert_eq!(ticket.name(), "order:7");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`LockGuard::into_ticket`]. After each error the lock is released, in the background.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock in the background.
    pub async fn into_ticket(self, within: Duration) -> Result<LockTicket, LockError> {
        self.guard.into_ticket(within).await
    }

    /// Releases the lock and waits for the server's reply, as [`LockGuard::release`] does.
    ///
    /// ```
    /// # use lock_core::{Lock, LockError, LockManager};
    /// # #[derive(Lock)]
    /// # #[lock(name = "order:{0}")]
    /// # struct OrderLock(u64);
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let order = locks.hold(OrderLock(7)).acquire().await?;
    /// order.release().await?;
    /// assert!(locks.hold(OrderLock(7)).try_acquire().await?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`LockGuard::release`].
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock in the background.
    pub async fn release(self) -> Result<(), LockError> {
        self.guard.release().await
    }

    /// Releases the lock, and says that the work has succeeded, as [`LockGuard::complete`] does.
    ///
    /// ```
    /// # use lock_core::{Lock, LockError, LockManager};
    /// # use std::time::Duration;
    /// # #[derive(Lock)]
    /// # #[lock(name = "order:{0}")]
    /// # struct OrderLock(u64);
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let request = || locks.hold(OrderLock(7)).once_per(Duration::from_secs(3600));
    /// request().acquire().await?.complete().await?;
    /// assert!(request().try_acquire().await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`LockGuard::complete`].
    ///
    /// # Cancel safety
    /// As [`LockGuard::complete`].
    pub async fn complete(self) -> Result<(), LockError> {
        self.guard.complete().await
    }
}

impl<L> Held<L, Write> {
    /// Makes a lock that is held for writing one that is held for reading, as [`LockGuard::downgrade`] does.
    ///
    /// ```
    /// # use lock_core::typed::Read;
    /// # use lock_core::{Held, Lock, LockError, LockManager};
    /// #[derive(Lock)]
    /// #[lock(name = "stock:{sku}", mode = read_write)]
    /// struct Stock<'a> {
    ///     sku: &'a str,
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let written = locks.hold_write(Stock { sku: "a-1" }).acquire().await?;
    /// let reading: Held<Stock<'_>, Read> = written.downgrade().await?;
    /// assert_eq!(reading.sku, "a-1");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`LockGuard::downgrade`]. After each error the lock is released, in the background.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock in the background.
    pub async fn downgrade(self) -> Result<Held<L, Read>, LockError>
    where
        L: ReadWriteLock,
    {
        let guard = self.guard.downgrade().await?;
        Ok(prove(self.lock, guard))
    }
}

impl<L, M> Deref for Held<L, M> {
    type Target = L;

    fn deref(&self) -> &L {
        &self.lock
    }
}

impl<L, M> fmt::Debug for Held<L, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("guard", &self.guard)
            .finish_non_exhaustive()
    }
}

impl<L, M> Holding for Held<L, M> {
    fn guards(&self) -> &[LockGuard] {
        self.guard.guards()
    }

    fn guards_mut(&mut self) -> &mut [LockGuard] {
        self.guard.guards_mut()
    }
}

/// A proof that `L` is held, in any mode: `&impl Holds<Stock<'_>>` takes it held for reading or for writing.
///
/// ```
/// # use lock_core::typed::Holds;
/// # use lock_core::{Lock, LockError, LockManager};
/// #[derive(Lock)]
/// #[lock(name = "stock:{sku}", mode = read_write)]
/// struct Stock<'a> {
///     sku: &'a str,
/// }
///
/// async fn price(stock: &impl Holds<Stock<'_>>) -> usize {
///     stock.lock().sku.len()
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let locks = LockManager::in_memory();
/// let stock = locks.hold_read(Stock { sku: "a-1" }).acquire().await?;
/// assert_eq!(price(&stock).await, 3);
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not prove that `{L}` is held",
    label = "proves something else",
    note = "take the lock, and pass the `Held` that it returns"
)]
pub trait Holds<L>: sealed::Sealed {
    /// Returns the lock that is held.
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

mod sealed {
    pub trait Sealed {}

    impl<L, M> Sealed for crate::typed::Held<L, M> {}
}

#[cfg(test)]
mod tests;
