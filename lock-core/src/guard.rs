//! The guard: a held lock, released when it goes.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::backend::Ending;
use crate::clock::Clock;
use crate::error::LockError;
use crate::hold::Hold;
use crate::nesting;
use crate::shared::{Core, Ended};
use crate::token::FencingToken;
use tracing::warn;

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
    core: Arc<Core>,
    hold: Arc<Hold>,
    /// What a release has to say; taken once it was said.
    ending: Option<Ending>,
}

impl LockGuard {
    pub(crate) fn new(core: Arc<Core>, hold: Arc<Hold>, ending: Ending) -> Self {
        core.keep(&hold);
        Self {
            core,
            hold,
            ending: Some(ending),
        }
    }

    /// The key that is locked, with the manager's prefix.
    #[must_use]
    pub fn key(&self) -> &str {
        self.hold.key.as_str()
    }

    /// The token of this grant: greater than that of every earlier grant of this key. `None`
    /// only in [dialects](crate::Dialect) that have none, which are all but the native one.
    #[must_use]
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.hold.token
    }

    /// For how long the lock is certainly held from now on, unless it is renewed: zero once it
    /// is lost. Where the backend keeps it as long as the guard lives, this is the ttl.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.hold.remaining()
    }

    /// Whether the lock is not certainly held any more: the server said so, or its lease ended.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.hold.is_lost()
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
        Lost::new(Arc::clone(&self.hold), self.core.lease_ends_unseen())
    }

    /// Something that knows about this lock and can be sent anywhere, but cannot release it.
    #[must_use]
    pub fn watch(&self) -> LockWatch {
        LockWatch {
            hold: Arc::clone(&self.hold),
            ends_unseen: self.core.lease_ends_unseen(),
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
        self.core.renew(&self.hold).await
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
        let released = self.send_release().await?;
        let was_held = released.was_held;
        self.settle(released);
        if was_held {
            Ok(())
        } else {
            Err(LockError::Lost)
        }
    }
}

impl LockGuard {
    /// The lock stays locked for this long from now on, also when it is released before.
    pub(crate) fn keep_for(&mut self, shortest: Duration) {
        if let Some(ending) = &mut self.ending {
            ending.keep_until = Some(self.hold.clock.now().plus(shortest));
        }
    }

    /// While the answer lives, asking for this lock on this task fails at once.
    pub(crate) fn enter(&self) -> nesting::Entered {
        nesting::enter(self.core.domain(), self.hold.key.text())
    }

    /// Sends the release and waits for the answer, which goes to [`settle`](Self::settle). The
    /// guard may still be referred to meanwhile. Dropping the future loses nothing: the guard's
    /// own drop then releases in the background.
    fn send_release(&self) -> impl Future<Output = Result<Ended, LockError>> + Send + use<> {
        let core = Arc::clone(&self.core);
        let hold = Arc::clone(&self.hold);
        let ending = self.ending.clone();
        async move {
            let Some(ending) = ending else {
                return Ok(Ended::before());
            };
            // A child has a copy, and must not touch the lock of its parent.
            core.check_process()?;
            let was_valid = !hold.is_lost();
            core.stop_keeping(&hold);
            core.release(&ending, was_valid).await
        }
    }

    /// The release was answered: nothing is left for `drop`, unless a copy is still on its way.
    pub(crate) fn settle(&mut self, released: Ended) {
        self.ending = released.still_open;
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        // Without one it was released, and is not kept any more. A child has a copy, and must not
        // touch the lock of its parent.
        if let Some(ending) = self.ending.take()
            && self.core.check_process().is_ok()
        {
            self.core.stop_keeping(&self.hold);
            self.core.abandon(ending);
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("key", &self.key())
            .field("fencing_token", &self.hold.token)
            .field("is_lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}

/// Knows about a held lock: for tasks that work under it but must not release it.
#[derive(Clone)]
pub struct LockWatch {
    hold: Arc<Hold>,
    ends_unseen: bool,
}

impl LockWatch {
    /// As [`LockGuard::is_lost`]. A lock that was released was not lost: see
    /// [`is_held`](Self::is_held).
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.hold.is_lost()
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
        Lost::new(Arc::clone(&self.hold), self.ends_unseen)
    }

    /// As [`LockGuard::remaining`]; zero too once the lock is released.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.hold.remaining()
    }

    /// As [`LockGuard::fencing_token`].
    #[must_use]
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.hold.token
    }
}

impl fmt::Debug for LockWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockWatch")
            .field("key", &self.hold.key.as_str())
            .field("is_lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}

/// Completes when a lock is lost. Made by [`LockGuard::lost`].
#[must_use = "a future does nothing unless it is polled"]
pub struct Lost {
    hold: Arc<Hold>,
    listener: Option<u64>,
    /// No keeper watches the end of this lease: a timer of the caller's runtime does.
    ends_unseen: bool,
    timer: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl Lost {
    fn new(hold: Arc<Hold>, ends_unseen: bool) -> Self {
        Self {
            hold,
            listener: None,
            ends_unseen,
            timer: None,
        }
    }

    fn set_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = self.hold.deadline().filter(|_| !self.hold.is_released());
        let left = deadline.map(|deadline| deadline.since(Clock::Tokio.now()));
        // A deadline beyond all clocks is none.
        let at = left.and_then(|left| tokio::time::Instant::now().checked_add(left));
        let Some(at) = at else {
            self.timer = None;
            return Poll::Pending;
        };
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        if timer.deadline() < at {
            timer.as_mut().reset(at);
        }
        timer.as_mut().poll(cx)
    }
}

impl Future for Lost {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        loop {
            if this.hold.poll_lost(cx, &mut this.listener).is_ready() {
                return Poll::Ready(());
            }
            // A timer that fired early, for a lease that was extended since, is set again.
            if !this.ends_unseen || this.set_timer(cx).is_pending() {
                return Poll::Pending;
            }
            this.timer = None;
        }
    }
}

impl Drop for Lost {
    fn drop(&mut self) {
        if let Some(id) = self.listener {
            self.hold.forget_listener(id);
        }
    }
}

impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lost")
            .field("key", &self.hold.key.as_str())
            .finish_non_exhaustive()
    }
}

/// Runs `body` until it is done, or dropped because the lock is lost.
pub(crate) async fn run<T>(
    guard: LockGuard,
    body: impl AsyncFnOnce(&LockGuard) -> T,
) -> Result<T, LockError> {
    let out = {
        let mut lost = guard.lost();
        let mut body = std::pin::pin!(body(&guard));
        std::future::poll_fn(|cx| {
            // Loss first: what is polled after it works without the lock.
            if Pin::new(&mut lost).poll(cx).is_ready() {
                return Poll::Ready(Err(LockError::Lost));
            }
            let _entered = guard.enter();
            body.as_mut().poll(cx).map(Ok)
        })
        .await?
    };
    let mut guard = guard;
    if let Some(released) = release_after(&guard).await {
        guard.settle(released);
    }
    Ok(out)
}

/// Releases the lock of a body that ran to its end. Never fails: the result is the caller's,
/// whatever becomes of the release. Without an answer the guard's drop releases again.
pub(crate) fn release_after(
    guard: &LockGuard,
) -> impl Future<Output = Option<Ended>> + Send + use<> {
    let release = guard.send_release();
    let key = guard.hold.key.clone();
    let counters = Arc::clone(&guard.core.counters);
    async move {
        let released = release.await;
        let error = match &released {
            Ok(ended) if ended.was_held => None,
            Ok(_) => Some(&LockError::Lost),
            Err(error) => Some(error),
        };
        if let Some(error) = error {
            counters.release_failed();
            counters.trace(|| warn!(%key, %error, "the body is done, and its release failed"));
        }
        released.ok()
    }
}
