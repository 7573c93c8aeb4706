//! Runs a body while its caller holds something: one lock, a set of locks, or a declared lock.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use super::{LockGuard, Lost};
use crate::error::LockError;
use crate::runtime::reentrancy::BodyScope;
use lock_protocol::cleanup::ReleaseOutcome;

/// What a caller holds while its body runs.
pub(crate) trait Holding {
    /// Completes when what is held is lost.
    type Loss: Future<Output = ()> + Send + Unpin;
    /// The scope of one poll of the body.
    type Scope;
    /// The outcome of the release.
    type Outcome: Send + Sync + 'static;

    /// Returns a future that completes at the loss.
    fn loss(&self) -> Self::Loss;

    /// Returns the error of a loss.
    fn loss_error(&self) -> LockError;

    /// Enters the scope of the body for one poll.
    fn enter_body(&self) -> Self::Scope;

    /// Releases after the body has completed. Never fails: the caller gets the body's result, whatever the
    /// outcome of the release is. Reports a release that failed.
    fn release_after_body(&self) -> impl Future<Output = Self::Outcome> + Send;

    /// Records the outcome of the release. What it does not confirm is released again by the drop.
    fn finish_body(&mut self, outcome: &Self::Outcome);
}

impl Holding for LockGuard {
    type Loss = Lost;
    type Scope = BodyScope;
    /// `None` without a reply.
    type Outcome = Option<ReleaseOutcome>;

    fn loss(&self) -> Lost {
        self.lost()
    }

    fn loss_error(&self) -> LockError {
        self.lost_error()
    }

    fn enter_body(&self) -> BodyScope {
        self.enter()
    }

    fn release_after_body(&self) -> impl Future<Output = Self::Outcome> + Send {
        let release = self.acquired.send_release();
        let reporter = Arc::clone(&self.acquired.inner.reporter);
        async move {
            let outcome = release.await;
            if !outcome.as_ref().is_ok_and(|outcome| outcome.was_owner) {
                reporter.release_failed();
            }
            outcome.ok()
        }
    }

    fn finish_body(&mut self, outcome: &Self::Outcome) {
        if let Some(outcome) = outcome {
            self.finish_release(outcome);
        }
    }
}

impl<H: Holding> Holding for Box<H> {
    type Loss = H::Loss;
    type Scope = H::Scope;
    type Outcome = H::Outcome;

    fn loss(&self) -> H::Loss {
        H::loss(self)
    }

    fn loss_error(&self) -> LockError {
        H::loss_error(self)
    }

    fn enter_body(&self) -> H::Scope {
        H::enter_body(self)
    }

    fn release_after_body(&self) -> impl Future<Output = H::Outcome> + Send {
        H::release_after_body(self)
    }

    fn finish_body(&mut self, outcome: &H::Outcome) {
        H::finish_body(self, outcome);
    }
}

/// Runs `body` to its end, or drops it at the loss. Releases after the body.
pub(crate) async fn run<H: Holding, T>(
    mut held: H,
    body: impl AsyncFnOnce(&H) -> T,
) -> Result<T, LockError> {
    let out = {
        let mut lost = held.loss();
        let mut body = std::pin::pin!(body(&held));
        std::future::poll_fn(|cx| {
            // The loss is polled first: otherwise the body would run once more without the lock.
            if Pin::new(&mut lost).poll(cx).is_ready() {
                return Poll::Ready(Err(held.loss_error()));
            }
            let _scope = held.enter_body();
            body.as_mut().poll(cx).map(Ok)
        })
        .await?
    };
    let outcome = held.release_after_body().await;
    held.finish_body(&outcome);
    Ok(out)
}

/// As [`run`], and drops the body when `end` completes first. Returns `None` then. A body that has ended keeps its
/// result, also when `end` completes during the release.
pub(crate) async fn run_until<H: Holding, T>(
    mut held: H,
    body: impl Future<Output = T>,
    end: impl Future<Output = ()>,
) -> Result<Option<T>, LockError> {
    let out = {
        let mut lost = held.loss();
        let mut body = std::pin::pin!(body);
        let mut end = std::pin::pin!(end);
        std::future::poll_fn(|cx| {
            if Pin::new(&mut lost).poll(cx).is_ready() {
                return Poll::Ready(Err(held.loss_error()));
            }
            if end.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(None));
            }
            let _scope = held.enter_body();
            body.as_mut().poll(cx).map(|out| Ok(Some(out)))
        })
        .await?
    };
    if out.is_some() {
        let outcome = held.release_after_body().await;
        held.finish_body(&outcome);
    }
    Ok(out)
}
