//! Why a lock was lost.

use std::fmt;
use std::sync::Arc;

use crate::acquisition::ObservedHolder;
use crate::inspection::KeyContent;
use crate::revocation::parse_revoked;

/// Why a lock was lost, as far as its holder knows. Returned by
/// [`LockGuard::loss_reason`](struct.LockGuard.html#method.loss_reason).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LossReason {
    /// The lease ended before a renewal was confirmed: the server or the network failed, or the process
    /// stood still.
    Expired,
    /// The key did not exist any more: it was deleted or evicted, or the server lost it. Also the reason of
    /// a loss that only the release found: its reply does not say whether the key has another owner.
    Removed,
    /// The key had another owner, or another client's value. Also the reason when another client removed the
    /// holders of a shared lock from its key `{<name>}:h`.
    Replaced,
    /// An operator [released the lock](admin/struct.Admin.html#method.force_release).
    #[non_exhaustive]
    Revoked {
        /// The operator.
        by: Arc<str>,
        /// The operator's reason.
        reason: Option<Arc<str>>,
    },
    /// The [`max_hold`](struct.LockRequest.html#method.max_hold) of the lock has passed.
    MaxHold,
    /// The server process is another one than when the lease was confirmed last, and does not have the
    /// lock: the server restarted without it, or another server took over.
    ServerChanged,
}

impl LossReason {
    #[doc(hidden)]
    pub fn revoked(by: Arc<str>, reason: Option<Arc<str>>) -> Self {
        Self::Revoked { by, reason }
    }

    /// Returns the reason as one word, for metrics: `expired`, `removed`, `replaced`, `revoked`,
    /// `max_hold` or `server_changed`.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Removed => "removed",
            Self::Replaced => "replaced",
            Self::Revoked { .. } => "revoked",
            Self::MaxHold => "max_hold",
            Self::ServerChanged => "server_changed",
        }
    }

    /// The reason of a holder that found this value in its key; `None` for no key.
    #[doc(hidden)]
    pub fn from_value(found: Option<&str>) -> Self {
        let Some(value) = found else {
            return Self::Removed;
        };
        let without_owner =
            ObservedHolder::from_value(value, None, None).filter(ObservedHolder::is_without_owner);
        match without_owner.and_then(|holder| parse_revoked(&holder.label)) {
            Some((by, reason)) => Self::Revoked { by, reason },
            None => Self::Replaced,
        }
    }

    /// As [`from_value`](Self::from_value), for any content of the key.
    #[doc(hidden)]
    pub fn from_content(content: &KeyContent) -> Self {
        match content {
            KeyContent::Free => Self::Removed,
            KeyContent::Text(found) => Self::from_value(Some(&found.holder.value)),
            KeyContent::OtherType { .. } => Self::Replaced,
        }
    }

    /// The reason when the server process has changed since the lease was confirmed last.
    #[doc(hidden)]
    pub fn after_server_change(self) -> Self {
        match self {
            Self::Removed | Self::Replaced => Self::ServerChanged,
            other => other,
        }
    }
}

/// The text for logs: `revoked by ops@host: stuck import`.
impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => f.write_str("its lease ended"),
            Self::Removed => f.write_str("its key was removed"),
            Self::Replaced => f.write_str("its key has another owner"),
            Self::Revoked { by, reason: None } => write!(f, "revoked by {by}"),
            Self::Revoked {
                by,
                reason: Some(reason),
            } => write!(f, "revoked by {by}: {reason}"),
            Self::MaxHold => f.write_str("its longest hold ended"),
            Self::ServerChanged => f.write_str("another server process does not have it"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NATIVE: &str = "lk1:00000000-0000-0000-0000-000000000000 12 99 ";
    const PLAIN: &str = "00000000-0000-0000-0000-000000000000 ";

    #[test]
    fn value_tells_the_reason() {
        for start in [NATIVE, PLAIN] {
            let value = format!("{start}revoked by ops: stuck");
            let reason = LossReason::from_value(Some(&value));
            assert_eq!(reason.to_string(), "revoked by ops: stuck");
            assert_eq!(reason.as_str(), "revoked");
            // Another holder's `min_hold`.
            let value = format!("{start}web-1");
            assert_eq!(LossReason::from_value(Some(&value)), LossReason::Replaced);
        }
        // Only a key without an owner is revoked: a label is free text.
        let value = "lk1:6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 12 99 revoked by ops";
        assert_eq!(LossReason::from_value(Some(value)), LossReason::Replaced);
        assert_eq!(LossReason::from_value(Some("")), LossReason::Replaced);
        assert_eq!(LossReason::from_value(None), LossReason::Removed);
    }
}
