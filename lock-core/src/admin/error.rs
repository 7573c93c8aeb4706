//! The errors of operators.

use std::fmt;
use std::sync::Arc;

use super::info::LockStatus;
use crate::error::{Holder, LockError};
use lock_protocol::error_line::write_line;
use lock_protocol::key::LockKey;
use lock_protocol::wire::escaped;

/// Why [`Admin::force_release`](crate::admin::Admin::force_release) failed.
///
/// With [`Lock`](Self::Lock) and a [`Backend`](LockError::Backend) or [`NoQuorum`](LockError::NoQuorum) error, the lock
/// may be released all the same: inspect it. All other errors mean that nothing changed.
///
/// `{:?}` writes one line, as that of [`LockError`] does.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// The lock does not have the expected token, or changed since it was inspected: another holder has
    /// it, it has no holder any more, or it is free.
    #[error(
        "the lock changed hands, and nothing was released{}; inspect it again",
        holds(holder.as_ref(), found.as_deref())
    )]
    #[non_exhaustive]
    Changed {
        /// The holder now. `None` when the lock is free, kept or blocked, and when the key holds something
        /// that is not a lock.
        holder: Option<Holder>,
        /// What the key holds now, if that is not a lock of this library or of a dialect: a hash, as
        /// Redisson's locks are, or a text.
        found: Option<Arc<str>>,
    },
    /// The key holds the value of another library, or a lock in the dialect
    /// [`DeadlineGetset`](crate::dialect::Dialect::DeadlineGetset). Neither can be revoked.
    #[error(
        "key `{}` holds {found}, which is no lock of this library, and was not changed; \
         `remove_foreign()` removes it at once",
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
        "lock `{}` has no expiry, so a revocation would never end; `free_at_once()` frees it",
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
    pub(super) fn changed(status: LockStatus) -> Self {
        let (holder, found) = match status {
            LockStatus::Held(holder) => (Some(holder), None),
            LockStatus::Foreign { found, .. } => (None, Some(found)),
            LockStatus::Free
            | LockStatus::Kept { .. }
            | LockStatus::Done { .. }
            | LockStatus::Blocked { .. } => (None, None),
        };
        Self::Changed { holder, found }
    }

    pub(super) fn foreign(key: &LockKey, status: LockStatus) -> Self {
        let found = match status {
            LockStatus::Foreign { found, .. } => found,
            LockStatus::Held(_) => "a value without an owner id".into(),
            LockStatus::Free
            | LockStatus::Kept { .. }
            | LockStatus::Done { .. }
            | LockStatus::Blocked { .. } => "another value".into(),
        };
        let key = key.text();
        Self::Foreign { key, found }
    }
}

impl fmt::Debug for AdminError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return match self {
                Self::Changed { holder, found } => {
                    let mut fields = f.debug_struct("Changed");
                    fields
                        .field("holder", holder)
                        .field("found", found)
                        .finish()
                }
                Self::Foreign { key, found } => {
                    let mut fields = f.debug_struct("Foreign");
                    fields.field("key", key).field("found", found).finish()
                }
                Self::NoExpiry { key } => f.debug_struct("NoExpiry").field("key", key).finish(),
                Self::Lock(error) => f.debug_tuple("Lock").field(error).finish(),
            };
        }
        match self {
            Self::Changed { .. } => write_line(f, "Changed", self),
            Self::Foreign { .. } => write_line(f, "Foreign", self),
            Self::NoExpiry { .. } => write_line(f, "NoExpiry", self),
            Self::Lock(error) => fmt::Debug::fmt(error, f),
        }
    }
}

fn holds(holder: Option<&Holder>, found: Option<&str>) -> String {
    match (holder, found) {
        (Some(holder), _) => format!(": `{}` holds it", holder.label),
        (None, Some(found)) => format!(": the key holds {found}"),
        (None, None) => String::new(),
    }
}
