//! What went wrong behind the callers' backs, counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// How often something happened, since the manager was made, that no caller may have seen.
///
/// Read it in a health check, or hand it to the metrics of your choice. Each event is traced as
/// a warning too, with the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Locks that were lost while they were held: refused by the server, or not renewed in time.
    pub lost: u64,
    /// Renewals without an answer. Each is repeated until the lease ends.
    pub renewals_failed: u64,
    /// Releases that failed after a body that ran to its end and kept its result.
    pub releases_failed: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    lost: AtomicU64,
    renewals_failed: AtomicU64,
    releases_failed: AtomicU64,
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

    pub(crate) fn read(&self) -> Counts {
        Counts {
            lost: self.lost.load(Ordering::Relaxed),
            renewals_failed: self.renewals_failed.load(Ordering::Relaxed),
            releases_failed: self.releases_failed.load(Ordering::Relaxed),
        }
    }
}
