//! What `#[distributed_lock]` expands to. Not an interface: it changes with the attribute.
//!
//! Little here is generic: what an annotated function adds to a program is its own body and a
//! few calls. The names of a lock are in `name`, its durations in `options`.

mod name;
mod options;

use std::fmt;
use std::future::{self, Future, Ready};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tracing::debug;

use crate::backend::ReleaseOutcome;
use crate::error::LockError;
use crate::guard::{self, LockGuard, Lost};
use crate::manager::LockManager;
use crate::protocol::key::LockName;
use crate::runtime::inner::check_runtime;
use crate::runtime::reentrancy::BodyScope;

pub use self::name::{
    IntoLockName, NamePart, Placeholder, name_from_expression, name_from_template,
    name_with_hash_tag,
};
pub use self::options::{
    Options, checked_max_hold, checked_min_hold, checked_renew, checked_ttl, dynamic,
};
pub use crate::protocol::renew::Renew;
pub use lock_macros::__lock_name;
pub use tokio::pin;

/// The manager that `manager = ..` names.
#[must_use]
pub fn manager(manager: &LockManager) -> Option<LockManager> {
    Some(manager.clone())
}

/// A future of this crate's own, boxed so that annotated functions stay small.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The acquire of an annotated function. Nothing is sent before it is polled.
#[must_use = "nothing is sent before it is polled"]
pub struct AcquireFuture(BoxFuture<Result<LockGuard, LockError>>);

/// Acquires the lock of an annotated function.
pub fn acquire(manager: Option<LockManager>, name: LockName, options: Options) -> AcquireFuture {
    AcquireFuture(Box::pin(async move {
        if let Some(fault) = name.invalid_reason() {
            return Err(LockError::invalid_name(&name, fault));
        }
        let (manager, spent) = match manager {
            Some(manager) => (manager, Duration::ZERO),
            None => current(options.wait).await?,
        };
        let request = options.apply(manager.lock(name));
        request.spent(spent).acquire().await
    }))
}

/// The manager of the caller, and how long it took to connect it. That counts as waiting.
async fn current(wait: Option<Duration>) -> Result<(LockManager, Duration), LockError> {
    check_runtime()?;
    let asked = tokio::time::Instant::now();
    // Connecting takes no longer than the command timeout, also for one attempt.
    let wait = wait.filter(|wait| !wait.is_zero());
    let wait = wait.unwrap_or(Duration::MAX);
    let connected = tokio::time::timeout(wait, LockManager::current()).await;
    let manager = connected.unwrap_or_else(|_elapsed| Err(LockManager::not_in_time()))?;
    Ok((manager, asked.elapsed()))
}

/// Completes an acquire before the body exists, so that `on_contended` still sees the parameters.
///
/// # Errors
///
/// When the lock is held by another holder. All other errors stay in the answer. Boxed, so that it
/// takes no place in the function's future.
#[must_use]
pub fn acquire_or_contended(
    acquire: AcquireFuture,
) -> BoxFuture<Result<AcquireFuture, Box<LockError>>> {
    Box::pin(async move {
        match acquire.0.await {
            Err(error) if error.is_contended() => Err(Box::new(error)),
            acquired => Ok(AcquireFuture(Box::pin(future::ready(acquired)))),
        }
    })
}

/// The place of the guard of one call. The body may borrow the guard, so the place outlives the
/// body.
#[derive(Debug, Default)]
pub struct GuardSlot {
    guard: OnceLock<LockGuard>,
    /// The answer to the release, which the drop of the guard takes into account.
    released: OnceLock<ReleaseOutcome>,
}

impl GuardSlot {
    /// No lock is held yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            guard: OnceLock::new(),
            released: OnceLock::new(),
        }
    }
}

impl Drop for GuardSlot {
    fn drop(&mut self) {
        if let Some(guard) = self.guard.get_mut()
            && let Some(released) = self.released.take()
        {
            guard.finish_release(&released);
        }
    }
}

/// The guard that `bind` names.
///
/// # Panics
///
/// Never in a body, which runs only while the lock is held.
pub fn guard(slot: &GuardSlot) -> &LockGuard {
    let Some(guard) = slot.guard.get() else {
        unreachable!("the body runs only while the lock is held");
    };
    guard
}

/// Answers `held.release()` in a body: the compiler prefers it to the method of the guard, which
/// would report that `held` cannot be moved, and not what to do.
pub trait BoundGuard {
    /// Cannot be called.
    fn release(self) -> Ready<Result<(), LockError>>
    where
        Self: ReleasedByTheCaller;
}

impl BoundGuard for &LockGuard {
    fn release(self) -> Ready<Result<(), LockError>>
    where
        Self: ReleasedByTheCaller,
    {
        unreachable!("no type implements `ReleasedByTheCaller`")
    }
}

/// A guard that the body may release.
#[diagnostic::on_unimplemented(
    message = "the body cannot release the lock of its own function",
    label = "the lock is released when the body ends",
    note = "return from the body, or use the builder, whose guard is yours: `locks.lock(name).acquire().await?`",
    note = "for a spawned task, `held.watch()` gives a handle that tells when the lock is lost"
)]
pub trait ReleasedByTheCaller {}

/// What happens to the body when the lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLost {
    /// It is not polled again, and the caller drops it.
    Cancel,
    /// It runs to its end.
    Continue,
}

/// One call of an annotated function, apart from its body: what it waits for.
struct CallProgress<'a> {
    slot: &'a GuardSlot,
    on_lost: OnLost,
    stage: CallStage<'a>,
}

enum CallStage<'a> {
    Acquiring(AcquireFuture),
    /// With `on_lost = continue` nothing listens for the loss.
    Held(&'a LockGuard, Option<Lost>),
    Releasing(BoxFuture<Option<ReleaseOutcome>>),
    Done,
}

impl<'a> CallProgress<'a> {
    fn new(slot: &'a GuardSlot, acquire: AcquireFuture, on_lost: OnLost) -> Self {
        Self {
            slot,
            on_lost,
            stage: CallStage::Acquiring(acquire),
        }
    }

    /// Polls the body while the lock is held. When the lock is lost the caller drops the body.
    ///
    /// The body is a trait object only here: so the future that holds it is `Send` exactly when
    /// the body is, and this is compiled once for each type of result, not for each body.
    fn poll_body<T>(
        &mut self,
        body: Pin<&mut dyn Future<Output = T>>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<T, LockError>> {
        let entered = ready!(self.poll_enter(cx))?;
        let polled = body.poll(cx);
        drop(entered);
        polled.map(Ok)
    }

    /// As [`poll_body`](Self::poll_body), and then releases the lock, while `output` keeps what
    /// the body gave.
    fn poll_confirmed<T>(
        &mut self,
        body: Pin<&mut dyn Future<Output = T>>,
        output: &mut Option<T>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<T, LockError>> {
        let done = match output.take() {
            Some(done) => done,
            None => ready!(self.poll_body(body, cx))?,
        };
        if self.poll_release(cx).is_pending() {
            *output = Some(done);
            return Poll::Pending;
        }
        Poll::Ready(Ok(done))
    }

    /// Acquires the lock, and then enters its scope for each poll of the body, unless the lock is
    /// lost.
    fn poll_enter(&mut self, cx: &mut Context<'_>) -> Poll<Result<BodyScope, LockError>> {
        if let CallStage::Acquiring(acquire) = &mut self.stage {
            let acquired = ready!(acquire.0.as_mut().poll(cx));
            self.stage = CallStage::Done;
            let acquired = acquired?;
            let guard = self.slot.guard.get_or_init(|| acquired);
            let lost = (self.on_lost == OnLost::Cancel).then(|| guard.lost());
            self.stage = CallStage::Held(guard, lost);
        }
        let CallStage::Held(guard, lost) = &mut self.stage else {
            unreachable!("polled after it was done");
        };
        // Loss first: what is polled after it works without the lock.
        if let Some(lost) = lost
            && Pin::new(lost).poll(cx).is_ready()
        {
            let error = guard.lost_error();
            self.stage = CallStage::Done;
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(guard.enter()))
    }

    /// Releases the lock after the body, and waits for the answer.
    fn poll_release(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let CallStage::Held(guard, _) = &self.stage {
            let release = guard::release_after(guard);
            self.stage = CallStage::Releasing(Box::pin(release));
        }
        if let CallStage::Releasing(release) = &mut self.stage {
            if let Some(outcome) = ready!(release.as_mut().poll(cx)) {
                // Empty until now: a lock is released once.
                let _is_first = self.slot.released.set(outcome);
            }
            self.stage = CallStage::Done;
        }
        Poll::Ready(())
    }
}

/// What an annotated function makes of the end of its section.
pub trait MapOutcome<T> {
    /// What the section gives.
    type Output;

    /// Makes it of the body's result, or of the error that kept the body from its end.
    fn map_outcome(&self, outcome: Result<T, LockError>) -> Self::Output;
}

/// Errors are answered where the section is awaited, after the body was dropped.
#[derive(Clone, Copy, Debug)]
pub struct ReturnOutcome;

impl<T> MapOutcome<T> for ReturnOutcome {
    type Output = Result<T, LockError>;

    fn map_outcome(&self, outcome: Result<T, LockError>) -> Self::Output {
        outcome
    }
}

/// Errors are answered while the body still exists, so this is not for handlers of users. It makes
/// an annotated function end with the `.await` of its result: then the compiler reports lifetimes
/// that are too short where the body returns, and not where the attribute stands.
impl<T> MapOutcome<T> for fn(LockError) -> T {
    type Output = T;

    fn map_outcome(&self, outcome: Result<T, LockError>) -> T {
        match outcome {
            Ok(output) => output,
            Err(error) => self(error),
        }
    }
}

/// The answer that is a function, and no value of a type of its own.
pub fn map_error_with<T>(map: fn(LockError) -> T) -> fn(LockError) -> T {
    map
}

/// An annotated function with `release = background`: the lock is released when the slot goes.
#[must_use = "futures do nothing unless they are polled"]
pub struct RunBody<'s, 'b, F: Future, A> {
    progress: CallProgress<'s>,
    body: Pin<&'b mut F>,
    map: A,
}

/// Acquires the lock and runs `body` while it is held.
pub fn run_body<'s, 'b, F: Future, A: MapOutcome<F::Output>>(
    slot: &'s GuardSlot,
    acquire: AcquireFuture,
    on_lost: OnLost,
    body: Pin<&'b mut F>,
    map: A,
) -> RunBody<'s, 'b, F, A> {
    RunBody {
        progress: CallProgress::new(slot, acquire, on_lost),
        body,
        map,
    }
}

impl<F: Future, A: MapOutcome<F::Output> + Unpin> Future for RunBody<'_, '_, F, A> {
    type Output = A::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<A::Output> {
        let this = &mut *self;
        match this.progress.poll_body(this.body.as_mut(), cx) {
            Poll::Ready(outcome) => Poll::Ready(this.map.map_outcome(outcome)),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// An annotated function with `release = confirm`: the body's result is kept until the release
/// is answered.
#[must_use = "futures do nothing unless they are polled"]
pub struct RunBodyThenRelease<'s, 'b, F: Future, A> {
    progress: CallProgress<'s>,
    body: Pin<&'b mut F>,
    output: Option<F::Output>,
    map: A,
}

/// As [`run_body`], and releases the lock after the body.
pub fn run_body_then_release<'s, 'b, F: Future, A: MapOutcome<F::Output>>(
    slot: &'s GuardSlot,
    acquire: AcquireFuture,
    on_lost: OnLost,
    body: Pin<&'b mut F>,
    map: A,
) -> RunBodyThenRelease<'s, 'b, F, A> {
    RunBodyThenRelease {
        progress: CallProgress::new(slot, acquire, on_lost),
        body,
        output: None,
        map,
    }
}

// The output is moved out, and never pinned.
impl<F: Future, A> Unpin for RunBodyThenRelease<'_, '_, F, A> {}

impl<F: Future, A: MapOutcome<F::Output>> Future for RunBodyThenRelease<'_, '_, F, A> {
    type Output = A::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<A::Output> {
        let this = &mut *self;
        match this
            .progress
            .poll_confirmed(this.body.as_mut(), &mut this.output, cx)
        {
            Poll::Ready(outcome) => Poll::Ready(this.map.map_outcome(outcome)),
            Poll::Pending => Poll::Pending,
        }
    }
}

/// Stands for the return type of an annotated function, however that is written.
pub struct ReturnType<R>(PhantomData<fn() -> R>);

impl<R> ReturnType<R> {
    /// The compiler finds the type.
    #[must_use]
    pub const fn new() -> Self {
        Self(PhantomData)
    }
}

impl<R> Default for ReturnType<R> {
    fn default() -> Self {
        Self::new()
    }
}

impl<R> Clone for ReturnType<R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for ReturnType<R> {}

impl<R> fmt::Debug for ReturnType<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReturnType")
    }
}

/// Gives a block its type. Never called.
#[must_use]
pub fn typed_return<R>(_: ReturnType<R>) -> R {
    unreachable!("the attribute writes this call where it is not reached")
}

/// Whether another holder has the lock: what `on_contended` answers.
#[must_use]
pub fn is_contended(error: &LockError) -> bool {
    error.is_contended()
}

/// A return type that can hold a [`LockError`].
#[diagnostic::on_unimplemented(
    message = "a failed lock cannot be returned as `{Self}`",
    label = "cannot hold a `LockError`",
    note = "return `Result<T, E>` where `E: From<LockError>`, or say what to return with `on_error = |e| ...`"
)]
pub trait FromLockError {
    /// The value that says what `error` says.
    fn from_lock_error(error: LockError) -> Self;
}

// Else the compiler names the `From` that is missing, and not what to do about it.
#[diagnostic::do_not_recommend]
impl<T, E: From<LockError>> FromLockError for Result<T, E> {
    fn from_lock_error(error: LockError) -> Self {
        Err(error.into())
    }
}

/// Returns `error` from an annotated function.
#[must_use]
pub fn return_error<R: FromLockError>(error: LockError) -> R {
    R::from_lock_error(error)
}

/// A return type that can say that the body was left out.
#[diagnostic::on_unimplemented(
    message = "`on_contended = skip` has nothing to return for `{Self}`",
    label = "has no value that says that the body was left out",
    note = "return `()`, `Option<_>` or a `Result` of these, or say what to return with `on_contended = |e| ...`"
)]
pub trait Skipped {
    /// The value of a function whose body was left out.
    fn skipped() -> Self;
}

impl Skipped for () {
    fn skipped() -> Self {}
}

impl<T> Skipped for Option<T> {
    fn skipped() -> Self {
        None
    }
}

impl<T: Skipped, E> Skipped for Result<T, E> {
    fn skipped() -> Self {
        Ok(T::skipped())
    }
}

/// Returns from an annotated function whose lock has another holder.
#[must_use]
pub fn return_skipped<R: Skipped>(error: &LockError) -> R {
    debug!(%error, "skipped: the lock has another holder");
    R::skipped()
}

/// Returns from an annotated function: without an error when its lock has another holder.
#[must_use]
pub fn return_skipped_or_error<R: Skipped + FromLockError>(error: LockError) -> R {
    if is_contended(&error) {
        return_skipped(&error)
    } else {
        return_error(error)
    }
}

/// Returns what `on_contended` or `on_error` makes of `error`. Carries the return type to a
/// closure.
pub fn call_handler<R>(
    _: ReturnType<R>,
    handler: impl FnOnce(LockError) -> R,
    error: LockError,
) -> R {
    handler(error)
}

/// Takes a handler that is no closure as written, but an expression that gives one. Carries the
/// return type to it.
pub fn handler<R, H: FnOnce(LockError) -> R>(_: ReturnType<R>, handler: H) -> H {
    handler
}

/// `!`, which can only be written as a return type.
pub type Never = <fn() -> ! as Returns>::Type;

/// Names what a function returns.
pub trait Returns {
    /// What it returns.
    type Type;
}

impl<R> Returns for fn() -> R {
    type Type = R;
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    struct Dropped<'a>(&'a AtomicBool);

    impl Drop for Dropped<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    const TTL: Duration = Duration::from_millis(100);

    fn unrenewed(locks: &LockManager) -> AcquireFuture {
        let options = Options {
            ttl: Some(TTL),
            renew: Renew::Never,
            ..Options::DEFAULT
        };
        acquire(Some(locks.clone()), "x".into(), options)
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_is_not_polled_after_the_loss() {
        let locks = LockManager::in_memory();
        let dropped = AtomicBool::new(false);
        let slot = GuardSlot::new();
        let outcome: Result<(), _> = {
            let body = pin!(async {
                let _dropped = Dropped(&dropped);
                tokio::time::sleep(2 * TTL).await;
                unreachable!("the lock was lost long ago");
            });
            let outcome = run_body_then_release(
                &slot,
                unrenewed(&locks),
                OnLost::Cancel,
                body,
                ReturnOutcome,
            )
            .await;
            assert!(!dropped.load(Ordering::SeqCst), "the caller drops it");
            outcome
        };
        assert!(matches!(outcome, Err(LockError::Lost { .. })));
        assert!(dropped.load(Ordering::SeqCst));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_to_continue_is_polled_after_the_loss() {
        let locks = LockManager::in_memory();
        let slot = GuardSlot::new();
        let body = pin!(async {
            tokio::time::sleep(2 * TTL).await;
            assert!(guard(&slot).is_lost());
            7
        });
        let outcome = run_body(
            &slot,
            unrenewed(&locks),
            OnLost::Continue,
            body,
            ReturnOutcome,
        )
        .await;
        assert!(matches!(outcome, Ok(7)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_is_done_before_its_next_await_keeps_its_result() {
        let locks = LockManager::in_memory();
        let slot = GuardSlot::new();
        let body = pin!(async { 7 });
        let outcome = run_body_then_release(
            &slot,
            unrenewed(&locks),
            OnLost::Cancel,
            body,
            ReturnOutcome,
        )
        .await;
        assert!(matches!(outcome, Ok(7)));
        assert!(slot.released.get().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn the_guard_of_a_released_lock_has_nothing_left_to_do() {
        let locks = LockManager::in_memory();
        let slot = GuardSlot::new();
        let body = pin!(async {});
        let acquire = acquire(Some(locks.clone()), "x".into(), Options::DEFAULT);
        let outcome =
            run_body_then_release(&slot, acquire, OnLost::Cancel, body, ReturnOutcome).await;
        outcome.unwrap();
        // The next holder keeps its lock when the guard of the first goes.
        let next = locks.lock("x").acquire().await.unwrap();
        drop(slot);
        assert!(locks.lock("x").try_acquire().await.unwrap().is_none());
        drop(next);
    }

    #[tokio::test(start_paused = true)]
    async fn a_contended_acquire_is_an_error_before_the_body_exists() {
        let locks = LockManager::in_memory();
        let again = || acquire(Some(locks.clone()), "x".into(), Options::DEFAULT);
        let held = acquire_or_contended(again())
            .await
            .unwrap()
            .0
            .await
            .unwrap();
        assert!(
            acquire_or_contended(again())
                .await
                .err()
                .unwrap()
                .is_contended()
        );
        drop(held);
        let nameless = acquire(Some(locks.clone()), "".into(), Options::DEFAULT);
        let error = acquire_or_contended(nameless).await.unwrap().0.await;
        assert!(matches!(error, Err(LockError::InvalidName { .. })));
    }
}
