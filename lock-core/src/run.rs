//! Runs a body while its caller holds something: a lock, a set of locks, or a declared lock.
//!
//! [`LockRequest::run`](crate::LockRequest::run), [`lead`](crate::LockRequest::lead) and the attribute differ in what
//! surrounds a body: `lead` ends it at a shutdown, too, and the attribute acquires in the same future and keeps guard
//! and body in the function's own frame. How a body runs is the same for all of them, and is [`BodyRun`].
//!
//! # Who owns what
//!
//! The guard has to outlive the body, which may borrow it. Both lie in the future that owns the call: [`run`] and
//! [`run_until`] have them as locals, the expansion of the attribute has them as variables, the guard in a slot. When
//! that future is dropped at any await, the body is dropped first, and the guard's drop then releases in the
//! background.
//!
//! # The order within a poll
//!
//! 1. *Look at the loss.* First, so that a body never runs without its lock: its first poll may come long after the
//!    grant, and a later poll may be the first thing that a paused process does.
//! 2. *Enter the scope of the body*, for this poll only. In it, an acquire of the same lock fails instead of waiting
//!    for itself.
//! 3. *Poll the body.* Its result is kept, even if the lock was lost meanwhile: the work was done, and only the body
//!    knows what that is worth.
//!
//! The release comes after the body's result. In [`run`] and [`run_until`] the body is dropped before it.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};

use crate::error::LockError;
use crate::guard::{Holding, LossSignal, release_after_body};

/// Polls a body while its locks are held.
pub(crate) struct BodyRun<'a, H> {
    held: &'a H,
    look: Look,
}

/// How the next poll looks at the loss.
enum Look {
    Always(LossSignal),
    /// Before the first poll of a body that a later loss doesn't end.
    #[cfg(feature = "macros")]
    Once,
    #[cfg(feature = "macros")]
    Never,
}

impl<'a, H: Holding> BodyRun<'a, H> {
    pub(crate) fn new(held: &'a H) -> Self {
        let look = Look::Always(held.loss());
        Self { held, look }
    }

    /// For a body that runs to its end once it has begun, even if the lock is lost.
    #[cfg(feature = "macros")]
    pub(crate) fn to_the_end(held: &'a H) -> Self {
        let look = Look::Once;
        Self { held, look }
    }

    #[cfg(feature = "macros")]
    pub(crate) fn held(&self) -> &'a H {
        self.held
    }

    /// Polls the body, unless the lock is lost. The caller drops the body after an error.
    pub(crate) fn poll<F: Future + ?Sized>(
        &mut self,
        body: Pin<&mut F>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<F::Output, LockError>> {
        let is_lost = match &mut self.look {
            Look::Always(loss) => Pin::new(loss).poll(cx).is_ready(),
            #[cfg(feature = "macros")]
            Look::Once => {
                self.look = Look::Never;
                self.held.is_any_lost()
            }
            #[cfg(feature = "macros")]
            Look::Never => false,
        };
        if is_lost {
            return Poll::Ready(Err(self.held.loss_error()));
        }
        let _scopes = self.held.enter_body();
        body.poll(cx).map(Ok)
    }
}

/// Runs `body` to its end, or drops it at the loss. Releases after the body.
pub(crate) async fn run<H: Holding, T>(
    mut held: H,
    body: impl AsyncFnOnce(&H) -> T,
) -> Result<T, LockError> {
    let out = {
        let mut run = BodyRun::new(&held);
        let mut body = pin!(body(&held));
        std::future::poll_fn(|cx| run.poll(body.as_mut(), cx)).await?
    };
    let released = release_after_body(held.guards()).await;
    held.finish_body(&released);
    Ok(out)
}

/// As [`run`], and says that the work has succeeded if the result is `Ok`.
pub(crate) async fn run_once<H: Holding, T, E>(
    held: H,
    body: impl AsyncFnOnce(&H) -> Result<T, E>,
) -> Result<Result<T, E>, LockError> {
    let completing = async |held: &H| {
        let out = body(held).await;
        if out.is_ok() {
            held.complete();
        }
        out
    };
    run(held, completing).await
}

/// As [`run`], and drops the body when `end` completes first. Returns `None` then. A body that has ended keeps its
/// result, even if `end` completes during the release.
pub(crate) async fn run_until<H: Holding, T>(
    mut held: H,
    body: impl Future<Output = T>,
    end: impl Future<Output = ()>,
) -> Result<Option<T>, LockError> {
    let out = {
        let mut run = BodyRun::new(&held);
        let mut body = pin!(body);
        let mut end = pin!(end);
        // The end comes first: a body does not begin after a shutdown. Its error, if the lock is lost too, is the loss.
        std::future::poll_fn(|cx| match end.as_mut().poll(cx) {
            Poll::Ready(()) if held.is_any_lost() => Poll::Ready(Err(held.loss_error())),
            Poll::Ready(()) => Poll::Ready(Ok(None)),
            Poll::Pending => run.poll(body.as_mut(), cx).map_ok(Some),
        })
        .await?
    };
    if out.is_some() {
        let released = release_after_body(held.guards()).await;
        held.finish_body(&released);
    }
    Ok(out)
}

#[cfg(feature = "macros")]
#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use super::*;
    use crate::guard::LockGuard;
    use crate::manager::LockManager;
    use lock_protocol::renew::Renew;

    const TTL: Duration = Duration::from_millis(100);

    async fn held_for_the_ttl() -> LockGuard {
        let request = LockManager::in_memory().lock("k").ttl(TTL);
        request.renew(Renew::Never).acquire().await.unwrap()
    }

    async fn finish<T>(
        mut run: BodyRun<'_, LockGuard>,
        body: impl Future<Output = T>,
    ) -> Result<T, LockError> {
        let mut body = pin!(body);
        poll_fn(|cx| run.poll(body.as_mut(), cx)).await
    }

    #[tokio::test(start_paused = true)]
    async fn body_does_not_begin_after_the_loss() {
        let guard = held_for_the_ttl().await;
        let runs = [BodyRun::new(&guard), BodyRun::to_the_end(&guard)];
        tokio::time::sleep(2 * TTL).await;
        for run in runs {
            let outcome = finish(run, async { panic!("the body runs without its lock") });
            assert!(outcome.await.is_err_and(|error: LockError| error.is_lost()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_body_that_runs_to_the_end_outlives_the_lock() {
        let body = || tokio::time::sleep(2 * TTL);
        let guard = held_for_the_ttl().await;
        assert!(finish(BodyRun::new(&guard), body()).await.is_err());
        let guard = held_for_the_ttl().await;
        assert!(finish(BodyRun::to_the_end(&guard), body()).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn end_drops_the_body_before_its_first_poll() {
        let guard = held_for_the_ttl().await;
        let body = async { panic!("the body runs after the end") };
        let outcome: Result<Option<()>, _> = run_until(guard, body, async {}).await;
        assert!(matches!(outcome, Ok(None)));
    }
}
