//! What went wrong behind the callers' backs, counted.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use tracing::error;

use crate::sync::{catch, panic_message};

/// How often something happened, since the manager was made, that no caller may have seen.
///
/// Read it in a health check, or hand it to the metrics of your choice. Each event is traced too:
/// those of a lock as a warning with the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockStats {
    /// Locks that were lost while they were held: refused by the server, or not renewed in time.
    pub lost: u64,
    /// Renewals without an answer. Each is repeated until the lease ends.
    pub renewals_failed: u64,
    /// Releases that failed after a body that ran to its end and kept its result.
    pub releases_failed: u64,
    /// Panics that were caught, so that locks are renewed and released all the same: of a tracing
    /// subscriber, of a waker, or of the background thread itself. Each is traced as an error.
    pub panics: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    lost: AtomicU64,
    renewals_failed: AtomicU64,
    releases_failed: AtomicU64,
    panics: AtomicU64,
}

impl Counters {
    pub(crate) fn lost(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn renewal_failed(&self) {
        self.renewals_failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn release_failed(&self) {
        self.releases_failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Traces an event. A subscriber that panics must not take the place of what comes next.
    pub(crate) fn trace(&self, event: impl FnOnce()) {
        if let Err(payload) = catch(event) {
            self.panicked("a tracing subscriber", payload);
        }
    }

    /// Wakes a task. A waker that panics must not keep the next one asleep.
    pub(crate) fn wake(&self, waker: Waker) {
        self.waking(|| waker.wake());
    }

    /// As [`wake`](Self::wake), for what wakes tasks: a notification of tokio, say.
    pub(crate) fn waking(&self, wake: impl FnOnce()) {
        if let Err(payload) = catch(wake) {
            self.panicked("a waker", payload);
        }
    }

    /// Counts and traces a panic that was caught.
    pub(crate) fn panicked(&self, who: &str, payload: Box<dyn Any + Send>) {
        self.panics.fetch_add(1, Ordering::Relaxed);
        let message = panic_message(payload);
        // The subscriber may be what panics.
        let traced = catch(|| error!(message, "caught a panic of {who}"));
        if let Err(again) = traced {
            panic_message(again);
        }
    }

    pub(crate) fn read(&self) -> LockStats {
        LockStats {
            lost: self.lost.load(Ordering::Relaxed),
            renewals_failed: self.renewals_failed.load(Ordering::Relaxed),
            releases_failed: self.releases_failed.load(Ordering::Relaxed),
            panics: self.panics.load(Ordering::Relaxed),
        }
    }
}
