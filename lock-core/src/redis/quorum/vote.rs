//! What one server of a quorum replied, and what the errors of several mean together.

use std::time::Duration;

use crate::error::LockError;
use lock_protocol::acquisition::{Failure, ObservedHolder};
use lock_protocol::quorum::{ServerLease, majority};

/// What one server replied in an attempt, with its number.
pub(super) enum Vote {
    Acquired(usize, Result<AcquireVote, LockError>),
    /// `None` if the key is not the caller's.
    Raised(usize, Result<Option<ServerLease>, LockError>),
}

/// The reply of one server to an acquire.
pub(super) enum AcquireVote {
    Held(ServerLease),
    Busy {
        /// `None` if the holder has gone meanwhile.
        holder: Option<ObservedHolder>,
        /// The time to the end of its lease; `None` for a key without an expiry.
        remaining: Option<Duration>,
    },
    Foreign {
        found: String,
    },
}

/// Returns an error that waiting does not cure, if so many servers return one that no majority is left.
pub(super) fn lasting(
    errors: impl Iterator<Item = LockError>,
    servers: usize,
) -> Option<LockError> {
    let mut lasting: Vec<_> = errors
        .filter(|error| !error.class().is_transient())
        .collect();
    (servers.saturating_sub(lasting.len()) < majority(servers))
        .then(|| lasting.pop())
        .flatten()
}
