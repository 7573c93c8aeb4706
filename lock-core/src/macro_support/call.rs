//! What the call of an annotated function acquires, and where it keeps it.

use std::future::{self, Future};
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};

use crate::error::LockError;
use crate::guard::{Holding, LockGuard, LockSet, Released};

/// A boxed future of this crate. The box keeps the futures of annotated functions small.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The acquire of an annotated function. It sends nothing before the first poll.
#[must_use = "futures do nothing unless they are polled"]
pub struct AcquireFuture<T = LockGuard>(BoxFuture<Result<T, LockError>>);

impl<T: Send + 'static> AcquireFuture<T> {
    pub(super) fn new(
        acquire: impl Future<Output = Result<T, LockError>> + Send + 'static,
    ) -> Self {
        Self(Box::pin(acquire))
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, LockError>> {
        self.0.as_mut().poll(cx)
    }

    /// Makes an acquire that has completed.
    pub(super) fn completed(acquired: Result<T, LockError>) -> Self {
        Self::new(future::ready(acquired))
    }
}

/// An acquire that gives the body what it holds.
#[allow(
    private_bounds,
    reason = "only this crate implements it, and this module is no public interface"
)]
pub trait Acquire: Sized + Unpin {
    /// What the server grants.
    type Granted: Send + 'static;
    /// What the body sees.
    type Held: Holding;

    /// Returns the future of the grant.
    fn future(&mut self) -> &mut AcquireFuture<Self::Granted>;

    /// Makes what the body sees.
    fn into_held(self, granted: Self::Granted) -> Self::Held;
}

impl Acquire for AcquireFuture {
    type Granted = LockGuard;
    type Held = LockGuard;

    fn future(&mut self) -> &mut AcquireFuture {
        self
    }

    fn into_held(self, granted: LockGuard) -> LockGuard {
        granted
    }
}

impl Acquire for AcquireFuture<LockSet> {
    type Granted = LockSet;
    type Held = LockSet;

    fn future(&mut self) -> &mut Self {
        self
    }

    fn into_held(self, granted: LockSet) -> LockSet {
        granted
    }
}

/// The place of what one call holds. The body may borrow it, so the place outlives the body.
#[allow(
    private_bounds,
    reason = "only this crate implements it, and this module is no public interface"
)]
#[derive(Debug)]
pub struct GuardSlot<H: Holding = LockGuard> {
    pub(super) held: OnceLock<H>,
    /// The outcome of the release. The drop of the guard needs it.
    pub(super) released: OnceLock<Released>,
}

#[allow(
    private_bounds,
    reason = "only this crate implements it, and this module is no public interface"
)]
impl<H: Holding> GuardSlot<H> {
    /// Makes an empty place.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            held: OnceLock::new(),
            released: OnceLock::new(),
        }
    }

    /// Tells the compiler the type of the place, before the body uses it.
    pub fn is_for<A: Acquire<Held = H>>(&self, _: &A) {}
}

impl<H: Holding> Default for GuardSlot<H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H: Holding> Drop for GuardSlot<H> {
    fn drop(&mut self) {
        if let Some(held) = self.held.get_mut()
            && let Some(released) = self.released.take()
        {
            held.finish_body(&released);
        }
    }
}

/// Returns what `bind` names.
///
/// # Panics
///
/// Never in a body, which runs only while the lock is held.
#[allow(
    private_bounds,
    reason = "only this crate implements it, and this module is no public interface"
)]
pub fn guard<H: Holding>(slot: &GuardSlot<H>) -> &H {
    let Some(held) = slot.held.get() else {
        unreachable!("the body runs only while the lock is held");
    };
    held
}

/// The future of [`acquire_or_contended`]. It is small, so that it takes little space in the future of the
/// function.
#[must_use = "futures do nothing unless they are polled"]
pub struct AcquireOrContended<A>(Option<A>);

/// Completes an acquire before the body exists, so that `on_contended` can use the parameters.
///
/// # Errors
///
/// Only when another holder has the lock. All other errors stay in the returned acquire.
pub fn acquire_or_contended<A: Acquire>(acquire: A) -> AcquireOrContended<A> {
    AcquireOrContended(Some(acquire))
}

impl<A: Acquire> Future for AcquireOrContended<A> {
    type Output = Result<A, Box<LockError>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(acquire) = &mut self.0 else {
            unreachable!("polled after it was done");
        };
        let Poll::Ready(acquired) = acquire.future().poll(cx) else {
            return Poll::Pending;
        };
        let Some(mut acquire) = self.0.take() else {
            unreachable!("it was there a moment ago");
        };
        Poll::Ready(match acquired {
            Err(error) if error.is_contended() => Err(Box::new(error)),
            acquired => {
                *acquire.future() = AcquireFuture::completed(acquired);
                Ok(acquire)
            }
        })
    }
}
