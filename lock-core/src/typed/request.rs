//! A request for a declared lock.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::{Held, HeldMode, Lock, prove};
use crate::error::LockError;
use crate::guard;
use crate::request::LockRequest;
use lock_protocol::key::LockName;
use lock_protocol::renew::Renew;

/// A request for a declared lock. Made by [`LockManager::hold`](crate::LockManager::hold),
/// [`read`](crate::LockManager::read), [`write`](crate::LockManager::write) and
/// [`permit`](crate::LockManager::permit).
///
/// The lock declares its name, its kind and its ttl. [`acquire`](Self::acquire),
/// [`try_acquire`](Self::try_acquire) and [`run`](Self::run) send the request.
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
#[must_use = "nothing is sent before `acquire`, `try_acquire` or `run`"]
pub struct HeldRequest<L, M> {
    request: LockRequest,
    lock: L,
    mode: PhantomData<fn() -> M>,
}

impl<L: Lock, M: HeldMode> HeldRequest<L, M> {
    /// `request` makes the request for the name of the lock.
    pub(crate) fn new(lock: L, request: impl FnOnce(LockName) -> LockRequest) -> Self {
        let declaration = lock.declaration();
        let request = request(declaration.name.clone());
        Self {
            request: declaration.apply(request, M::kind(declaration.kind)),
            lock,
            mode: PhantomData,
        }
    }

    /// Sets how long the call waits for the lock, as [`LockRequest::wait`] does. Defaults to the lock's `wait`,
    /// or else to the manager's [`default_wait`](crate::LockManagerBuilder::default_wait), which is 5 s.
    pub fn wait(self, wait: Duration) -> Self {
        self.with(|request| request.wait(wait))
    }

    /// Sets whether and how often the lock is renewed, as [`LockRequest::renew`] does. Defaults to
    /// [`Renew::Auto`].
    pub fn renew(self, renew: Renew) -> Self {
        self.with(|request| request.renew(renew))
    }

    /// Sets the longest time for which the lock is held, as [`LockRequest::max_hold`] does. Defaults to no
    /// limit.
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.with(|request| request.max_hold(max_hold))
    }

    /// Sets the shortest time for which the key stays locked, as [`LockRequest::min_hold`] does. Defaults to
    /// zero.
    pub fn min_hold(self, min_hold: Duration) -> Self {
        self.with(|request| request.min_hold(min_hold))
    }

    fn with(mut self, set: impl FnOnce(LockRequest) -> LockRequest) -> Self {
        self.request = set(self.request);
        self
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
    /// As [`LockRequest::acquire`].
    pub async fn acquire(self) -> Result<Held<L, M>, LockError> {
        let guard = self.request.acquire().await?;
        Ok(prove(self.lock, guard))
    }

    /// Makes one attempt to acquire the lock, as [`LockRequest::try_acquire`] does. Returns `None` when other
    /// holders have it.
    ///
    /// # Errors
    /// As [`LockRequest::try_acquire`].
    ///
    /// # Panics
    /// As [`LockRequest::acquire`].
    ///
    /// # Cancel safety
    /// As [`LockRequest::acquire`].
    pub async fn try_acquire(self) -> Result<Option<Held<L, M>>, LockError> {
        let guard = self.request.try_acquire().await?;
        Ok(guard.map(|guard| prove(self.lock, guard)))
    }

    /// Acquires the lock, runs `body`, and releases the lock, as [`LockRequest::run`] does.
    ///
    /// Write the body as `async |held| { .. }`: a plain closure that returns a future cannot borrow the proof.
    ///
    /// One case needs more: the lock borrows, and the call is in a spawned task or in a boxed future that is `Send`.
    /// There the compiler says "implementation of `AsyncFnOnce` is not general enough". Give the body a variable, with
    /// the type of its parameter. An `async fn` works too, and so does a lock that owns its fields.
    ///
    /// ```
    /// # use lock_core::{Held, Lock, LockError, LockManager};
    /// #[derive(Lock)]
    /// #[lock(name = "customer:{id}")]
    /// struct CustomerLock<'a> {
    ///     id: &'a str,
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = LockManager::in_memory();
    /// let length = tokio::spawn(async move {
    ///     let id = String::from("c-7");
    ///     let body = async |customer: &Held<CustomerLock<'_>>| customer.id.len();
    ///     locks.hold(CustomerLock { id: &id }).run(body).await
    /// });
    /// assert_eq!(length.await??, 3);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`LockRequest::run`].
    ///
    /// # Panics
    /// As [`LockRequest::run`].
    ///
    /// # Cancel safety
    /// Dropping the future drops the body and releases the lock in the background.
    pub async fn run<T>(self, body: impl AsyncFnOnce(&Held<L, M>) -> T) -> Result<T, LockError> {
        let held = self.acquire().await?;
        guard::run(held, body).await
    }
}

/// Acquires the lock, as [`HeldRequest::acquire`] does.
impl<L: Lock, M: HeldMode> IntoFuture for HeldRequest<L, M> {
    type Output = Result<Held<L, M>, LockError>;
    type IntoFuture = HeldFuture<L, M>;

    fn into_future(self) -> Self::IntoFuture {
        HeldFuture {
            acquire: self.request.into_future(),
            lock: Some(self.lock),
            mode: PhantomData,
        }
    }
}

/// The future of an awaited [`HeldRequest`]. The box has no `L`, so `L` may borrow.
#[must_use = "futures do nothing unless they are polled"]
pub struct HeldFuture<L, M> {
    acquire: <LockRequest as IntoFuture>::IntoFuture,
    lock: Option<L>,
    mode: PhantomData<fn() -> M>,
}

// The lock is moved out, and never pinned.
impl<L, M> Unpin for HeldFuture<L, M> {}

impl<L, M> Future for HeldFuture<L, M> {
    type Output = Result<Held<L, M>, LockError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.acquire.as_mut().poll(cx).map_ok(|guard| {
            let Some(lock) = self.lock.take() else {
                unreachable!("polled after it was done");
            };
            prove(lock, guard)
        })
    }
}

impl<L, M> fmt::Debug for HeldFuture<L, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldFuture").finish_non_exhaustive()
    }
}

// Not derived: a mode is no value, and never `Clone`.
impl<L: Clone, M> Clone for HeldRequest<L, M> {
    fn clone(&self) -> Self {
        Self {
            request: self.request.clone(),
            lock: self.lock.clone(),
            mode: PhantomData,
        }
    }
}

impl<L, M> fmt::Debug for HeldRequest<L, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldRequest")
            .field("request", &self.request)
            .finish_non_exhaustive()
    }
}
