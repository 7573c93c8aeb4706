//! Counts of events that a caller may not have seen.

use crate::telemetry::Counts;

/// Counts events, since the manager was made, that a caller may not have seen. Returned by
/// [`LockManager::stats`](crate::LockManager::stats).
///
/// Read it in a health check, or export it as metrics. Each event is also a
/// [`LockEvent`](crate::telemetry::LockEvent).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockStats {
    /// Locks that were lost while they were held. A renewal or the release found the key free or with
    /// another owner, or the lease ended before a renewal succeeded.
    pub lost: u64,
    /// Renewals that failed: the server did not reply, or replied with an error. The background
    /// worker repeats each of them until the lease ends.
    pub renewals_failed: u64,
    /// Releases that failed after the body of a lock had completed. The body's result was kept.
    pub releases_failed: u64,
    /// Panics of a tracing subscriber, of a metrics recorder, of an observer, of a
    /// [holder tag](crate::LockManagerBuilder::holder_tag), of an
    /// [address map](crate::LockManagerBuilder::address_map), of a provider of credentials, of a waker, or of the background
    /// worker. The library catches each of them, traces it as an error, and continues to renew and release locks.
    pub panics: u64,
}

impl From<Counts> for LockStats {
    fn from(counts: Counts) -> Self {
        let Counts {
            lost,
            renewals_failed,
            releases_failed,
            panics,
        } = counts;
        Self {
            lost,
            renewals_failed,
            releases_failed,
            panics,
        }
    }
}
