//! The guard: a held lock, released when it goes.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::backend::ReleaseOutcome;
use crate::error::LockError;
use crate::protocol::fencing_token::FencingToken;
use crate::runtime::acquired::Acquired;
use crate::runtime::held_lock::HeldLock;
use crate::runtime::reentrancy;
use tracing::warn;

mod lost;

pub use self::lost::Lost;

/// A held lock. It is renewed while the guard lives, and released when the guard goes.
///
/// [`release`](Self::release) waits until the server has said that the lock is free, and tells
/// when it had been lost. Dropping the guard releases in the background: at once where the
/// process goes on, after the ttl where the process ends first.
///
/// A guard can say whether the lock is certainly held now, and tells when it is lost; it
/// cannot stop a process that was paused from writing late. For that a resource needs the
/// [fencing token](Self::fencing_token).
#[must_use = "the lock is released as soon as the guard is dropped"]
pub struct LockGuard {
    acquired: Acquired,
}

impl LockGuard {
    pub(crate) fn new(acquired: Acquired) -> Self {
        Self { acquired }
    }

    /// The key that is locked, with the manager's prefix.
    #[must_use]
    pub fn key(&self) -> &str {
        self.held().key.as_str()
    }

    /// The token of this grant: greater than that of every earlier grant of this key. `None`
    /// only in [dialects](crate::Dialect) that have none, which are all but the native one.
    #[must_use]
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.held().token
    }

    /// For how long the lock is certainly held from now on, unless it is renewed: zero once it
    /// is lost. Where the backend keeps it as long as the guard lives, this is the ttl.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.held().remaining()
    }

    /// Whether the lock is not certainly held any more: the server said so, or its lease ended.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.held().is_lost()
    }

    /// Completes when the lock is lost, and never when it is released.
    ///
    /// # Panics
    /// In memory the future panics when it is polled outside of a tokio runtime, if the lock has a
    /// `max_hold` or is not renewed: nothing but a timer tells the end of its lease.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub fn lost(&self) -> Lost {
        Lost::new(
            Arc::clone(self.held()),
            self.acquired.inner.needs_expiry_timer(),
        )
    }

    /// Something that knows about this lock and can be sent anywhere, but cannot release it.
    #[must_use]
    pub fn watch(&self) -> LockWatch {
        LockWatch {
            held: Arc::clone(self.held()),
            needs_expiry_timer: self.acquired.inner.needs_expiry_timer(),
        }
    }

    /// Extends the lease to the whole ttl now, besides the renewals in the background.
    ///
    /// # Errors
    /// [`LockError::Lost`] when the lock is not held any more, [`LockError::Backend`] when the
    /// server gave no answer: then the lock is held until its lease ends.
    /// [`LockError::NoRuntime`] outside of a tokio runtime, [`LockError::Forked`] in a forked child.
    ///
    /// # Cancel safety
    /// A dropped call may or may not have extended the lease.
    #[doc(alias = "extend")]
    pub async fn renew(&self) -> Result<(), LockError> {
        self.acquired.inner.renew(self.held()).await
    }

    /// Releases the lock and waits for the server's word, at most for the command timeout.
    ///
    /// # Errors
    /// [`LockError::Lost`] when the lock was not held any more, [`LockError::Backend`] when the
    /// server gave no answer: then the release goes on in the background.
    /// [`LockError::NoRuntime`] outside of a tokio runtime, where the release goes on as well, and
    /// [`LockError::Forked`] in a forked child, where nothing is released.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock in the background.
    pub async fn release(mut self) -> Result<(), LockError> {
        let outcome = self.acquired.send_release().await?;
        self.finish_release(&outcome);
        if outcome.was_owner {
            Ok(())
        } else {
            Err(self.lost_error())
        }
    }
}

impl LockGuard {
    /// Keeps the key locked for at least that long from now on, also after an earlier release.
    pub(crate) fn set_min_hold(&mut self, min_hold: Duration) {
        self.acquired.set_min_hold(min_hold);
    }

    /// Enters the scope of the body: while the result lives, an acquire of this lock on this task
    /// fails at once.
    pub(crate) fn enter(&self) -> reentrancy::BodyScope {
        self.acquired.enter()
    }

    /// Records the outcome of [`release_after`].
    pub(crate) fn finish_release(&mut self, outcome: &ReleaseOutcome) {
        self.acquired.finish_release(outcome);
    }

    pub(crate) fn lost_error(&self) -> LockError {
        self.held().lost_error()
    }

    fn held(&self) -> &Arc<HeldLock> {
        &self.acquired.held
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("key", &self.key())
            .field("fencing_token", &self.held().token)
            .field("is_lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}

/// Knows about a held lock: for tasks that work under it but must not release it.
#[derive(Clone)]
pub struct LockWatch {
    held: Arc<HeldLock>,
    needs_expiry_timer: bool,
}

impl LockWatch {
    /// As [`LockGuard::is_lost`]. A lock that was released was not lost: see
    /// [`is_held`](Self::is_held).
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.held.is_lost()
    }

    /// Whether the lock is certainly held now: neither lost nor released.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// As [`LockGuard::lost`].
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub fn lost(&self) -> Lost {
        Lost::new(Arc::clone(&self.held), self.needs_expiry_timer)
    }

    /// As [`LockGuard::remaining`]; zero too once the lock is released.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.held.remaining()
    }

    /// As [`LockGuard::fencing_token`].
    #[must_use]
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.held.token
    }
}

impl fmt::Debug for LockWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockWatch")
            .field("key", &self.held.key.as_str())
            .field("is_lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}

/// Runs `body` until it is done, or drops it because the lock is lost.
pub(crate) async fn run<T>(
    mut guard: LockGuard,
    body: impl AsyncFnOnce(&LockGuard) -> T,
) -> Result<T, LockError> {
    let out = {
        let mut lost = guard.lost();
        let mut body = std::pin::pin!(body(&guard));
        std::future::poll_fn(|cx| {
            // Loss first: a body that is polled after it works without the lock.
            if Pin::new(&mut lost).poll(cx).is_ready() {
                return Poll::Ready(Err(guard.lost_error()));
            }
            let _scope = guard.enter();
            body.as_mut().poll(cx).map(Ok)
        })
        .await?
    };
    if let Some(outcome) = release_after(&guard).await {
        guard.finish_release(&outcome);
    }
    Ok(out)
}

/// Releases the lock of a body that has completed. Never fails: the caller gets the body's result,
/// whatever the outcome of the release is. Without a reply the guard's drop releases again.
pub(crate) fn release_after(
    guard: &LockGuard,
) -> impl Future<Output = Option<ReleaseOutcome>> + Send + use<> {
    let release = guard.acquired.send_release();
    let held = Arc::clone(guard.held());
    let counters = Arc::clone(&guard.acquired.inner.counters);
    async move {
        let outcome = release.await;
        let error = match &outcome {
            Ok(outcome) if outcome.was_owner => None,
            Ok(_) => Some(&held.lost_error()),
            Err(error) => Some(error),
        };
        if let Some(error) = error {
            let key = &held.key;
            counters.release_failed();
            counters.trace(|| warn!(%key, %error, "the body is done, and its release failed"));
        }
        outcome.ok()
    }
}
