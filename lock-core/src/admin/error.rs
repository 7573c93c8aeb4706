//! The errors of operators.

use std::sync::Arc;

use crate::error::LockError;
use crate::info::{HolderInfo, LockStatus};
use crate::protocol::key::LockKey;
use crate::protocol::wire::escaped;

/// Why [`Admin::force_release`](crate::Admin::force_release) changed nothing.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// The lock does not have the expected token, or changed since it was inspected: another holder has
    /// it, it has no holder any more, or it is free.
    #[error("the lock changed hands, and nothing was released{}; inspect it again", holds(now.as_ref()))]
    #[non_exhaustive]
    Changed {
        /// The holder now. `None` when the lock is free or blocked.
        now: Option<HolderInfo>,
    },
    /// The key holds the value of another library, which cannot be revoked.
    #[error(
        "key `{}` holds {found}, which is no lock of this library, and was not changed; \
         `foreign(true)` removes it at once",
        escaped(key)
    )]
    #[non_exhaustive]
    Foreign {
        /// The key.
        key: Arc<str>,
        /// The value that the key holds.
        found: Arc<str>,
    },
    /// The key has no expiry, so a revoked lock would never be free.
    #[error(
        "lock `{}` has no expiry, so a revocation would never end; `now()` frees it at once",
        escaped(key)
    )]
    #[non_exhaustive]
    NoExpiry {
        /// The key.
        key: Arc<str>,
    },
    /// The call failed as a call for a lock does.
    #[error(transparent)]
    Lock(#[from] LockError),
}

impl AdminError {
    pub(super) fn foreign(key: &LockKey, status: LockStatus) -> Self {
        let found = match status {
            LockStatus::Foreign { found, .. } => found,
            LockStatus::Held(holder) => format!("the value `{}`", holder.label).into(),
            LockStatus::Free | LockStatus::Blocked { .. } => "another value".into(),
        };
        let key = key.text();
        Self::Foreign { key, found }
    }
}

fn holds(now: Option<&HolderInfo>) -> String {
    now.map_or_else(String::new, |holder| {
        format!(": `{}` holds it", holder.label)
    })
}
