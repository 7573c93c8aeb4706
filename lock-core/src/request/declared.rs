//! Requests for declared locks.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::lock_request::{Acquirable, Acquisition, Attempts, Electable, resume_one, start_one};
use super::settings::Settings;
use super::{LockRequest, OneLock, Target};
use crate::error::LockError;
use crate::guard::LockGuard;
use crate::runtime::acquired::Acquired;
use crate::runtime::inner::ManagerInner;
use crate::typed::{Held, HeldMode, Lock, guard_of, prove};
use lock_protocol::key::LockName;
use lock_protocol::ticket::LockTicket;

/// The target of a request for a declared lock: `L` is the lock, and `M` the mode in which it will be held. Made by
/// [`LockManager::hold`](crate::LockManager::hold) and its siblings.
///
/// ```
/// # use lock_core::{Held, Lock, LockError, LockManager};
/// # use std::time::Duration;
/// #[derive(Lock)]
/// #[lock(name = "order:{order_id}")]
/// struct OrderLock {
///     order_id: u64,
/// }
///
/// # async fn charge(order: &Held<OrderLock>) -> u64 { order.order_id }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let locks = LockManager::in_memory();
/// let request = locks.hold(OrderLock { order_id: 7 }).wait(Duration::from_secs(2));
/// let charged = request.run(async |order| charge(order).await).await?;
/// assert_eq!(charged, 7);
/// # Ok(())
/// # }
/// ```
pub struct Declared<L, M> {
    lock: L,
    name: LockName,
    mode: PhantomData<fn() -> M>,
}

impl<L: Lock, M: HeldMode> LockRequest<Declared<L, M>> {
    pub(crate) fn of_declared(inner: Arc<ManagerInner>, lock: L) -> Self {
        let declaration = lock.declaration();
        let mut settings = Settings::new(inner);
        settings.kind.set(M::kind(declaration.kind));
        settings.times.wait = declaration.wait;
        if let Some(ttl) = declaration.ttl {
            settings.times.ttl = ttl;
        }
        Self {
            settings,
            target: Declared {
                lock,
                name: declaration.name,
                mode: PhantomData,
            },
        }
    }

    /// As [`LockManager::resume`](crate::LockManager::resume), for a declared lock. The ticket has to be for this lock,
    /// which is checked by its name.
    ///
    /// ```
    /// # use lock_core::{Held, Lock, LockError, LockManager};
    /// # use std::time::Duration;
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
    /// let ticket = order.into_ticket(Duration::from_secs(60)).await?;
    /// let order: Held<OrderLock> = locks.hold(OrderLock { order_id: 7 }).resume(ticket).await?;
    /// order.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`LockManager::resume`](crate::LockManager::resume). [`LockError::Invalid`] with
    /// [`InvalidSetting::Ticket`](crate::error::InvalidSetting::Ticket) when the ticket is for another lock, and in the
    /// modes for reading and for permits.
    ///
    /// # Cancel safety
    /// As [`LockManager::resume`](crate::LockManager::resume).
    pub async fn resume(self, ticket: LockTicket) -> Result<Held<L, M>, LockError> {
        let Declared { lock, name, .. } = self.target;
        let guard = resume_one(&name, self.settings, ticket).await?;
        Ok(prove(lock, guard))
    }
}

impl<L: Lock, M: HeldMode> Target for Declared<L, M> {
    type Guard = Held<L, M>;
}

impl<L: Lock, M: HeldMode> Acquirable for Declared<L, M> {
    type Granted = Acquired;
    // Beside the box, which has no `L`: so `L` may borrow.
    type Rest = L;
    type Held = Held<L, M>;

    fn start(
        self,
        settings: &Settings,
        attempts: Attempts,
    ) -> Result<(Acquisition<Acquired>, L), LockError> {
        Ok((start_one(&self.name, settings, attempts)?, self.lock))
    }

    fn held(lock: L, granted: Acquired) -> Held<L, M> {
        prove(lock, LockGuard::new(granted))
    }
}

impl<L: Lock + Clone, M: HeldMode> OneLock for Declared<L, M> {}

impl<L: Lock, M: HeldMode> Electable for Declared<L, M> {
    fn declared_wait(&self) -> Option<Duration> {
        self.lock.declaration().wait
    }

    fn guard(held: &Held<L, M>) -> &LockGuard {
        held.guard()
    }

    fn into_guard(held: Held<L, M>) -> LockGuard {
        guard_of(held)
    }
}

// Not derived, because a mode is never `Clone`.
impl<L: Clone, M> Clone for Declared<L, M> {
    fn clone(&self) -> Self {
        Self {
            lock: self.lock.clone(),
            name: self.name.clone(),
            mode: PhantomData,
        }
    }
}

impl<L, M> fmt::Debug for Declared<L, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Declared").field(&self.name).finish()
    }
}
