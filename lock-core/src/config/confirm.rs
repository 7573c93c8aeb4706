//! Who has to acknowledge a lock before it counts.

use std::time::Duration;

use crate::error::{InvalidSetting, LockError};

/// How long a confirmation waits for acknowledgments, unless [`Confirm::within`] says it.
const WITHIN: Duration = Duration::from_millis(200);
/// The server counts in milliseconds, and reads zero as no limit.
const SHORTEST: Duration = Duration::from_millis(1);

/// Acknowledgments that each lock needs before it counts: of replicas (`WAIT`), or of the disk (`WAITAOF`).
///
/// A lock that n replicas have acknowledged survives a failover to any of them. Sentinel and Redis Cluster choose
/// one of the replicas that they can reach, so ask **all replicas** to survive a failover. This bounds what a
/// failover may lose; it does not make replication a consensus.
///
/// Each acquire then costs a renewal and its acknowledgments, on a connection of its own. Acquires at the same
/// time share the wait. A lease counts from the renewal that was acknowledged, and later renewals have to be
/// acknowledged too: without that, a lock is lost at the end of its lease. With too few acknowledgments, calls
/// fail with [`NotReplicated`](crate::error::BackendErrorKind::NotReplicated), which is retryable.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use lock_core::config::Confirm;
///
/// // One primary and two replicas, behind Sentinels.
/// let confirm = Confirm::replicas(2).within(Duration::from_millis(100));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "settings have no effect before a builder has them"]
pub struct Confirm {
    pub(crate) replicas: u32,
    pub(crate) fsync: bool,
    pub(crate) within: Duration,
}

impl Confirm {
    /// Asks for acknowledgments of this many replicas (`WAIT`). At least one.
    pub fn replicas(replicas: u32) -> Self {
        Self {
            replicas,
            fsync: false,
            within: WITHIN,
        }
    }

    /// Asks the primary to write the lock to its append-only file and to the disk (`WAITAOF 1 0`). Needs Redis 7.2
    /// or later, or Valkey, with `appendonly yes`. With `appendfsync everysec`
    /// the disk follows up to a second later: use `appendfsync always`, or a longer [`within`](Self::within) and command
    /// timeout.
    pub fn fsync() -> Self {
        Self::fsync_replicas(0)
    }

    /// As [`fsync`](Self::fsync), on the primary and on this many replicas (`WAITAOF 1 n`).
    pub fn fsync_replicas(replicas: u32) -> Self {
        Self {
            replicas,
            fsync: true,
            within: WITHIN,
        }
    }

    /// Sets how long to wait for the acknowledgments. Must be shorter than the command timeout. Defaults to 200 ms.
    pub fn within(mut self, within: Duration) -> Self {
        self.within = within;
        self
    }

    pub(crate) fn check(self, command_timeout: Duration) -> Result<(), LockError> {
        let invalid = |value: String, advice: &str| {
            Err(LockError::Invalid(InvalidSetting::Manager {
                setting: "confirm",
                value: value.into(),
                advice: advice.to_owned().into(),
            }))
        };
        if self.replicas == 0 && !self.fsync {
            return invalid(
                "0 replicas".into(),
                "ask for at least one replica, or use `Confirm::fsync()`",
            );
        }
        if self.within < SHORTEST || self.within >= command_timeout {
            return invalid(
                format!("within {:?}", self.within),
                "use at least 1 ms, and less than the command timeout",
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confirmation_without_a_meaning_is_refused() {
        let timeout = Duration::from_secs(1);
        for confirm in [
            Confirm::replicas(0),
            Confirm::replicas(1).within(Duration::ZERO),
            Confirm::fsync().within(timeout),
        ] {
            let error = confirm.check(timeout).unwrap_err();
            assert!(error.to_string().contains("confirm"), "{error}");
        }
        for confirm in [
            Confirm::replicas(1),
            Confirm::fsync(),
            Confirm::fsync_replicas(2),
        ] {
            confirm.check(timeout).unwrap();
        }
    }
}
