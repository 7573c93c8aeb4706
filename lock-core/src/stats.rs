//! Counters of events that a caller may not have seen.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use tracing::error;

use crate::sync::{catch, panic_message};

/// Counts events, since the manager was made, that a caller may not have seen. Returned by
/// [`LockManager::stats`](crate::LockManager::stats).
///
/// Read it in a health check, or export it as metrics. Each event is also traced. Events of a lock
/// are traced as warnings with the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockStats {
    /// Locks that were lost while they were held. Either a renewal found the key free or with
    /// another owner, or the lease ended before a renewal succeeded.
    pub lost: u64,
    /// Renewals that failed: the server did not reply, or replied with an error. The background
    /// worker repeats each of them until the lease ends.
    pub renewals_failed: u64,
    /// Releases that failed after the body of a lock had completed. The body's result was kept.
    pub releases_failed: u64,
    /// Panics of a tracing subscriber, of a waker, of a
    /// [holder tag](crate::LockManagerBuilder::holder_tag), or of the background worker. The library catches
    /// each of them, traces it as an error, and continues to renew and release locks.
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

    /// Traces an event. A panic of the subscriber must not stop the code after the event.
    pub(crate) fn trace(&self, event: impl FnOnce()) {
        if let Err(payload) = catch(event) {
            self.panicked("a tracing subscriber", payload);
        }
    }

    /// Wakes a task. A panic of the waker must not keep the next task asleep.
    pub(crate) fn wake(&self, waker: Waker) {
        self.waking(|| waker.wake());
    }

    /// As [`wake`](Self::wake), for a call that wakes tasks, such as a notification of tokio.
    pub(crate) fn waking(&self, wake: impl FnOnce()) {
        if let Err(payload) = catch(wake) {
            self.panicked("a waker", payload);
        }
    }

    /// Counts and traces a panic that was caught.
    pub(crate) fn panicked(&self, who: &str, payload: Box<dyn Any + Send>) {
        self.panics.fetch_add(1, Ordering::Relaxed);
        let message = panic_message(payload);
        // The subscriber itself may be the code that panics.
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
