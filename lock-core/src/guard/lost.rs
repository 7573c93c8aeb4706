//! The future that completes when a lock is lost.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::runtime::held_lock::HeldLock;
use lock_protocol::clock::Clock;

/// Completes when a lock is lost. Made by [`LockGuard::lost`](crate::LockGuard::lost) and
/// [`LockWatch::lost`](crate::LockWatch::lost).
#[must_use = "a future does nothing unless it is polled"]
pub struct Lost {
    held: Arc<HeldLock>,
    listener: Option<u64>,
    /// The background worker does not watch the end of this lease, so a timer of the caller's runtime
    /// does.
    needs_expiry_timer: bool,
    timer: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl Lost {
    pub(super) fn new(held: Arc<HeldLock>, needs_expiry_timer: bool) -> Self {
        Self {
            held,
            listener: None,
            needs_expiry_timer,
            timer: None,
        }
    }

    fn set_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let deadline = self.held.deadline().filter(|_| !self.held.is_released());
        let left = deadline.map(|deadline| deadline.since(Clock::Tokio.now()));
        // A deadline beyond the range of the clock never comes.
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
            if this.held.poll_lost(cx, &mut this.listener).is_ready() {
                return Poll::Ready(());
            }
            // The lease was extended after the timer was set: set the timer again.
            if !this.needs_expiry_timer || this.set_timer(cx).is_pending() {
                return Poll::Pending;
            }
            this.timer = None;
        }
    }
}

impl Drop for Lost {
    fn drop(&mut self) {
        if let Some(id) = self.listener {
            self.held.forget_listener(id);
        }
    }
}

impl fmt::Debug for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lost")
            .field("key", &self.held.key.as_str())
            .finish_non_exhaustive()
    }
}
