//! Polls the body of an annotated function while its lock is held.

use std::future::Future;
use std::mem;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::ReturnType;
use super::call::{Acquire, AcquireFuture, GuardSlot};
use crate::error::LockError;
use crate::guard::{Holding, Released, release_after_body};
use crate::run::BodyRun;

/// The effect of a lost lock on the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLost {
    /// The body is not polled again, and the caller drops it.
    Cancel,
    /// The body runs to its end, once it has begun.
    Continue,
}

/// The state of one call, without its body.
struct CallProgress<'a, A: Acquire> {
    slot: &'a GuardSlot<A::Held>,
    on_lost: OnLost,
    stage: CallStage<'a, A>,
}

type ReleaseFuture<'a> = Pin<Box<dyn Future<Output = Released> + Send + 'a>>;

enum CallStage<'a, A: Acquire> {
    Acquiring(A),
    Running(BodyRun<'a, A::Held>),
    Releasing(ReleaseFuture<'a>),
    Done,
}

impl<'a, A: Acquire> CallProgress<'a, A> {
    fn new(slot: &'a GuardSlot<A::Held>, acquire: A, on_lost: OnLost) -> Self {
        Self {
            slot,
            on_lost,
            stage: CallStage::Acquiring(acquire),
        }
    }

    /// Acquires the lock, and polls the body while it is held. The caller drops the body after an error.
    ///
    /// The body is a trait object only during the poll. So the future that owns the body is `Send`
    /// exactly when the body is, and this function is compiled once for each type of result.
    fn poll_body<T>(
        &mut self,
        body: Pin<&mut dyn Future<Output = T>>,
        map: &dyn HasSucceeded<T>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<T, LockError>> {
        ready!(self.poll_acquire(cx))?;
        let CallStage::Running(run) = &mut self.stage else {
            unreachable!("polled after it was done");
        };
        let polled = run.poll(body, cx);
        match &polled {
            // Before any release, because each one says so: this call's, and the one when the guard is dropped.
            Poll::Ready(Ok(output)) if map.has_succeeded(output) => run.held().complete(),
            Poll::Ready(Err(_)) => self.stage = CallStage::Done,
            Poll::Ready(Ok(_)) | Poll::Pending => {}
        }
        polled
    }

    /// Polls the body, and then the release. Meanwhile `output` keeps the result of the body.
    fn poll_body_then_release<T>(
        &mut self,
        body: Pin<&mut dyn Future<Output = T>>,
        output: &mut Option<T>,
        map: &dyn HasSucceeded<T>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<T, LockError>> {
        let done = match output.take() {
            Some(done) => done,
            None => ready!(self.poll_body(body, map, cx))?,
        };
        if self.poll_release(cx).is_pending() {
            *output = Some(done);
            return Poll::Pending;
        }
        Poll::Ready(Ok(done))
    }

    fn poll_acquire(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LockError>> {
        if let CallStage::Acquiring(acquire) = &mut self.stage {
            let granted = ready!(acquire.future().poll(cx));
            let stage = mem::replace(&mut self.stage, CallStage::Done);
            let granted = granted?;
            let CallStage::Acquiring(acquire) = stage else {
                unreachable!("it was this stage a moment ago");
            };
            let held = self.slot.held.get_or_init(|| acquire.into_held(granted));
            let run = match self.on_lost {
                OnLost::Cancel => BodyRun::new(held),
                OnLost::Continue => BodyRun::to_the_end(held),
            };
            self.stage = CallStage::Running(run);
        }
        Poll::Ready(Ok(()))
    }

    /// Releases the lock after the body, and waits for the reply.
    fn poll_release(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let CallStage::Running(run) = &self.stage {
            let release = release_after_body(run.held().guards());
            self.stage = CallStage::Releasing(Box::pin(release));
        }
        if let CallStage::Releasing(release) = &mut self.stage {
            let released = ready!(release.as_mut().poll(cx));
            // A lock is released only once, so the cell is empty.
            let _is_first = self.slot.released.set(released);
            self.stage = CallStage::Done;
        }
        Poll::Ready(())
    }
}

/// Knows whether the work of a function with `once_per` has succeeded.
pub trait HasSucceeded<T> {
    /// Returns whether this result keeps the name taken. Always false without `once_per`.
    fn has_succeeded(&self, output: &T) -> bool;
}

/// Makes the output of a call from its outcome.
pub trait MapOutcome<T>: HasSucceeded<T> {
    /// The output of the call.
    type Output;

    /// Maps the result of the body, or the error that ended the call.
    fn map_outcome(&self, outcome: Result<T, LockError>) -> Self::Output;
}

/// Returns the outcome as it is. The expansion handles errors after it has dropped the body.
#[derive(Clone, Copy, Debug)]
pub struct ReturnOutcome;

impl<T> HasSucceeded<T> for ReturnOutcome {
    fn has_succeeded(&self, _: &T) -> bool {
        false
    }
}

impl<T> MapOutcome<T> for ReturnOutcome {
    type Output = Result<T, LockError>;

    fn map_outcome(&self, outcome: Result<T, LockError>) -> Self::Output {
        outcome
    }
}

impl<T> HasSucceeded<T> for fn(LockError) -> T {
    fn has_succeeded(&self, _: &T) -> bool {
        false
    }
}

/// Maps an error while the body still exists, so it is not for the handlers of users. With it, an
/// annotated function ends with the `.await` of its result. Then the compiler's lifetime errors
/// point at the body, and not at the attribute.
impl<T> MapOutcome<T> for fn(LockError) -> T {
    type Output = T;

    fn map_outcome(&self, outcome: Result<T, LockError>) -> T {
        match outcome {
            Ok(output) => output,
            Err(error) => self(error),
        }
    }
}

/// The outcome of a function with `once_per`, whose result says whether it has succeeded.
#[derive(Clone, Copy, Debug)]
pub struct Completing<M, T> {
    map: M,
    has_succeeded: fn(&T) -> bool,
}

/// Lets the result of a function with `once_per` keep the name taken.
pub fn completing<T, M: MapOutcome<T>>(
    _: ReturnType<T>,
    map: M,
    has_succeeded: fn(&T) -> bool,
) -> Completing<M, T> {
    Completing { map, has_succeeded }
}

impl<M, T> HasSucceeded<T> for Completing<M, T> {
    fn has_succeeded(&self, output: &T) -> bool {
        (self.has_succeeded)(output)
    }
}

impl<T, M: MapOutcome<T>> MapOutcome<T> for Completing<M, T> {
    type Output = M::Output;

    fn map_outcome(&self, outcome: Result<T, LockError>) -> M::Output {
        self.map.map_outcome(outcome)
    }
}

/// The result of a body. It has succeeded if it is `Ok`, or if its type is no `Result`.
///
/// `Success(&result).has_succeeded()` is chosen by the type, also behind an alias: the compiler finds the method of a
/// `Result` first, and for each other type the one behind the `Deref`.
#[derive(Debug)]
pub struct Success<'a, T>(pub &'a T);

impl<T, E> Success<'_, Result<T, E>> {
    /// Returns whether it is `Ok`.
    #[must_use]
    pub fn has_succeeded(&self) -> bool {
        self.0.is_ok()
    }
}

/// A result of another type.
#[derive(Debug)]
pub struct NoResult;

impl NoResult {
    /// Returns true: the body has ended.
    #[must_use]
    pub fn has_succeeded(&self) -> bool {
        true
    }
}

impl<T> Deref for Success<'_, T> {
    type Target = NoResult;

    fn deref(&self) -> &NoResult {
        &NoResult
    }
}

/// Turns a function item into a function pointer.
pub fn map_error_with<T>(map: fn(LockError) -> T) -> fn(LockError) -> T {
    map
}

/// An annotated function with `release = background`: the drop of the slot releases the lock.
#[must_use = "futures do nothing unless they are polled"]
pub struct RunBody<'s, 'b, F: Future, M, A: Acquire = AcquireFuture> {
    progress: CallProgress<'s, A>,
    body: Pin<&'b mut F>,
    map: M,
}

/// Acquires the lock and runs `body` while it is held.
pub fn run_body<'s, 'b, F: Future, M: MapOutcome<F::Output>, A: Acquire>(
    slot: &'s GuardSlot<A::Held>,
    acquire: A,
    on_lost: OnLost,
    body: Pin<&'b mut F>,
    map: M,
) -> RunBody<'s, 'b, F, M, A> {
    RunBody {
        progress: CallProgress::new(slot, acquire, on_lost),
        body,
        map,
    }
}

impl<F: Future, M: MapOutcome<F::Output> + Unpin, A: Acquire> Future for RunBody<'_, '_, F, M, A> {
    type Output = M::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<M::Output> {
        let this = &mut *self;
        match this.progress.poll_body(this.body.as_mut(), &this.map, cx) {
            Poll::Ready(outcome) => Poll::Ready(this.map.map_outcome(outcome)),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// An annotated function with `release = confirm`: it keeps the body's result until the reply to
/// the release.
#[must_use = "futures do nothing unless they are polled"]
pub struct RunBodyThenRelease<'s, 'b, F: Future, M, A: Acquire = AcquireFuture> {
    progress: CallProgress<'s, A>,
    body: Pin<&'b mut F>,
    output: Option<F::Output>,
    map: M,
}

/// Acquires the lock, runs `body` while it is held, and then releases it.
pub fn run_body_then_release<'s, 'b, F: Future, M: MapOutcome<F::Output>, A: Acquire>(
    slot: &'s GuardSlot<A::Held>,
    acquire: A,
    on_lost: OnLost,
    body: Pin<&'b mut F>,
    map: M,
) -> RunBodyThenRelease<'s, 'b, F, M, A> {
    RunBodyThenRelease {
        progress: CallProgress::new(slot, acquire, on_lost),
        body,
        output: None,
        map,
    }
}

// The output is moved out, and never pinned.
impl<F: Future, M, A: Acquire> Unpin for RunBodyThenRelease<'_, '_, F, M, A> {}

impl<F: Future, M: MapOutcome<F::Output>, A: Acquire> Future
    for RunBodyThenRelease<'_, '_, F, M, A>
{
    type Output = M::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<M::Output> {
        let this = &mut *self;
        let polled = this.progress.poll_body_then_release(
            this.body.as_mut(),
            &mut this.output,
            &this.map,
            cx,
        );
        match polled {
            Poll::Ready(outcome) => Poll::Ready(this.map.map_outcome(outcome)),
            Poll::Pending => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::super::acquire::acquire;
    use super::super::call::guard;
    use super::super::options::Options;
    use super::*;
    use crate::manager::LockManager;
    use lock_protocol::renew::Renew;

    struct Dropped<'a>(&'a AtomicBool);

    impl Drop for Dropped<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    const TTL: Duration = Duration::from_millis(100);

    fn acquire_without_renewal(locks: &LockManager) -> AcquireFuture {
        let options = Options {
            ttl: Some(TTL),
            renew: Renew::Never,
            ..Options::DEFAULT
        };
        acquire(Some(locks.clone()), "x".into(), options)
    }

    #[tokio::test(start_paused = true)]
    async fn body_is_not_polled_after_the_loss() {
        let locks = LockManager::in_memory();
        let dropped = AtomicBool::new(false);
        let slot: GuardSlot = GuardSlot::new();
        let acquire = acquire_without_renewal(&locks);
        let outcome: Result<(), _> = {
            let body = pin!(async {
                let _dropped = Dropped(&dropped);
                tokio::time::sleep(2 * TTL).await;
                unreachable!("the lock was lost long ago");
            });
            let run = run_body_then_release(&slot, acquire, OnLost::Cancel, body, ReturnOutcome);
            let outcome = run.await;
            assert!(!dropped.load(Ordering::SeqCst), "the caller drops it");
            outcome
        };
        assert!(matches!(outcome, Err(LockError::Lost { .. })));
        assert!(dropped.load(Ordering::SeqCst));
    }

    #[tokio::test(start_paused = true)]
    async fn body_with_on_lost_continue_is_polled_after_the_loss() {
        let locks = LockManager::in_memory();
        let slot: GuardSlot = GuardSlot::new();
        let body = pin!(async {
            tokio::time::sleep(2 * TTL).await;
            assert!(guard(&slot).is_lost());
            7
        });
        let acquire = acquire_without_renewal(&locks);
        let outcome = run_body(&slot, acquire, OnLost::Continue, body, ReturnOutcome).await;
        assert!(matches!(outcome, Ok(7)));
    }

    #[tokio::test(start_paused = true)]
    async fn body_without_another_await_keeps_its_result() {
        let locks = LockManager::in_memory();
        let slot: GuardSlot = GuardSlot::new();
        let body = pin!(async { 7 });
        let acquire = acquire_without_renewal(&locks);
        let run = run_body_then_release(&slot, acquire, OnLost::Cancel, body, ReturnOutcome);
        assert!(matches!(run.await, Ok(7)));
        assert!(slot.released.get().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn dropping_a_released_guard_does_not_release_the_next_lock() {
        let locks = LockManager::in_memory();
        let slot: GuardSlot = GuardSlot::new();
        let body = pin!(async {});
        let acquire = acquire(Some(locks.clone()), "x".into(), Options::DEFAULT);
        let run = run_body_then_release(&slot, acquire, OnLost::Cancel, body, ReturnOutcome);
        run.await.unwrap();
        let next = locks.lock("x").acquire().await.unwrap();
        drop(slot);
        assert!(locks.lock("x").try_acquire().await.unwrap().is_none());
        drop(next);
    }
}
