//! A request for a declared lock.

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::time::Duration;
use std::{fmt, pin::Pin};

use super::{Held, held};
use crate::error::LockError;
use crate::guard;
use crate::protocol::renew::Renew;
use crate::request::LockRequest;

/// A request for a declared lock. Made by [`LockManager::hold`](crate::LockManager::hold),
/// [`read`](crate::LockManager::read), [`write`](crate::LockManager::write) and
/// [`permit`](crate::LockManager::permit).
///
/// What the declaration says about the lock, such as its ttl, is the same for all callers. How long a caller waits
/// and holds is set here.
#[must_use = "nothing is sent before `acquire`, `try_acquire` or `run`"]
pub struct TypedRequest<L, M> {
    lock: L,
    request: LockRequest,
    mode: PhantomData<fn() -> M>,
}

impl<L, M> TypedRequest<L, M> {
    pub(crate) fn new(lock: L, request: LockRequest) -> Self {
        Self {
            lock,
            request,
            mode: PhantomData,
        }
    }

    fn with(self, change: impl FnOnce(LockRequest) -> LockRequest) -> Self {
        Self {
            request: change(self.request),
            ..self
        }
    }

    /// Sets how long the call waits for the lock, as [`LockRequest::wait`] does. Defaults to the declaration's
    /// `wait`, or to the manager's [`default_wait`](crate::LockManagerBuilder::default_wait).
    pub fn wait(self, wait: Duration) -> Self {
        self.with(|request| request.wait(wait))
    }

    /// Sets how often the lock is renewed, as [`LockRequest::renew`] does. Defaults to [`Renew::Auto`].
    pub fn renew(self, renew: Renew) -> Self {
        self.with(|request| request.renew(renew))
    }

    /// Sets the longest time for which the lock is held, as [`LockRequest::max_hold`] does. Defaults to no limit.
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.with(|request| request.max_hold(max_hold))
    }

    /// Sets the shortest time for which the key stays locked, as [`LockRequest::min_hold`] does. Defaults to
    /// zero.
    pub fn min_hold(self, min_hold: Duration) -> Self {
        self.with(|request| request.min_hold(min_hold))
    }

    /// Acquires the lock, as [`LockRequest::acquire`] does.
    ///
    /// # Errors
    /// As [`LockRequest::acquire`].
    ///
    /// # Panics
    /// As [`LockRequest::acquire`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves the queue, and releases a lock that was granted meanwhile.
    pub async fn acquire(self) -> Result<Held<L, M>, LockError> {
        let guard = self.request.acquire().await?;
        Ok(held(self.lock, guard))
    }

    /// Makes one attempt, as [`LockRequest::try_acquire`] does.
    ///
    /// # Errors
    /// As [`LockRequest::try_acquire`].
    ///
    /// # Panics
    /// As [`LockRequest::acquire`].
    ///
    /// # Cancel safety
    /// Dropping the future releases a lock that was granted meanwhile.
    pub async fn try_acquire(self) -> Result<Option<Held<L, M>>, LockError> {
        let guard = self.request.try_acquire().await?;
        Ok(guard.map(|guard| held(self.lock, guard)))
    }

    /// Acquires the lock, runs `body` with the proof, and releases the lock, as [`LockRequest::run`] does.
    ///
    /// # Errors
    /// As [`LockRequest::run`].
    ///
    /// # Cancel safety
    /// Dropping the future drops the body and releases the lock in the background.
    pub async fn run<T>(self, body: impl AsyncFnOnce(&Held<L, M>) -> T) -> Result<T, LockError> {
        guard::run(self.acquire().await?, body).await
    }
}

/// Acquires the lock, as [`TypedRequest::acquire`] does.
impl<L: Send + 'static, M: 'static> IntoFuture for TypedRequest<L, M> {
    type Output = Result<Held<L, M>, LockError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}

impl<L, M> fmt::Debug for TypedRequest<L, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TypedRequest").field(&self.request).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::LockManager;
    use crate::typed::{Exclusive, Lock, Permit, Read, ReadWrite, Semaphore, Write};

    struct Order(u64);

    impl Lock for Order {
        type Kind = Exclusive;

        fn request(&self, locks: &LockManager) -> LockRequest {
            locks.lock(format!("order:{}", self.0))
        }
    }

    struct Stock;

    impl Lock for Stock {
        type Kind = ReadWrite;

        fn request(&self, locks: &LockManager) -> LockRequest {
            locks.lock("stock")
        }
    }

    struct Mailer;

    impl Lock for Mailer {
        type Kind = Semaphore;

        fn request(&self, locks: &LockManager) -> LockRequest {
            locks.lock("mailer").permits(2)
        }
    }

    #[test]
    fn proof_is_send_with_its_lock() {
        fn assert_send<T: Send + Sync + 'static>() {}
        assert_send::<Held<Order>>();
        assert_send::<Held<Order, Read>>();
        assert!(size_of::<Held<Order>>() <= size_of::<crate::LockGuard>() + size_of::<Order>());
    }

    #[tokio::test(start_paused = true)]
    async fn proof_names_its_lock_and_releases_it() {
        let locks = LockManager::in_memory();
        let held: Held<Order, Write> = locks.hold(Order(7)).await.unwrap();
        assert_eq!(held.0, 7);
        assert!(!held.is_lost() && held.fencing_token().is_some());
        assert!(locks.hold(Order(7)).try_acquire().await.unwrap().is_none());
        held.renew().await.unwrap();
        held.release().await.unwrap();
        let id = locks.hold(Order(7)).run(async |order| order.0).await;
        assert_eq!(id.unwrap(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn modes_are_those_of_the_declaration() {
        let locks = LockManager::in_memory();
        let writer = locks.write(Stock).await.unwrap();
        let reader: Held<Stock, Read> = writer.downgrade().await.unwrap();
        let second = locks.read(Stock).try_acquire().await.unwrap();
        assert!(second.is_some());
        assert!(locks.write(Stock).try_acquire().await.unwrap().is_none());
        drop((reader, second));
        let permits: [Held<Mailer, Permit>; 2] = [
            locks.permit(Mailer).await.unwrap(),
            locks.permit(Mailer).await.unwrap(),
        ];
        assert!(locks.permit(Mailer).try_acquire().await.unwrap().is_none());
        drop(permits);
    }
}
