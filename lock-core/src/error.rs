//! What can go wrong, and who is at fault.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use crate::protocol::dialect::{Dialect, InvalidDialectReason};
use crate::protocol::key::{InvalidNameReason, LockName};
use crate::protocol::wire::escaped;

mod backend;
pub(crate) mod foreign_key;

pub use self::backend::{BackendError, BackendErrorKind};

/// Why there is no lock, or no longer one.
///
/// Busy ([`Contended`](Self::Contended), [`Timeout`](Self::Timeout)), down
/// ([`Backend`](Self::Backend)) and refused (all others) are never confused: treat only the
/// first as "somebody else does it", and none as "go on without the lock".
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Somebody holds the lock, and the request was not to wait.
    #[error(
        "lock `{}` is busy{}; try later, or say how long to `wait`", escaped(key), about(holder.as_ref())
    )]
    #[non_exhaustive]
    Contended {
        /// The lock's key.
        key: Arc<str>,
        /// Who holds it, when that is known.
        holder: Option<Holder>,
    },
    /// The lock was not free within the wait.
    #[error(
        "lock `{}` was not free within {}{}", escaped(key), rounded(*waited), about(holder.as_ref())
    )]
    #[non_exhaustive]
    Timeout {
        /// The lock's key.
        key: Arc<str>,
        /// How long was waited.
        waited: Duration,
        /// Who holds it, when that is known.
        holder: Option<Holder>,
    },
    /// The lock was held and was lost: its lease ended, or its key was removed. What the body did
    /// until then is not undone.
    #[error(
        "lock `{}` was lost while it was held: its lease ended or its key was removed",
        escaped(key)
    )]
    #[non_exhaustive]
    Lost {
        /// The lock's key.
        key: Arc<str>,
    },
    /// The task holds this lock already, in a body of [`run`](crate::LockRequest::run) or of the
    /// attribute, and would wait for itself for ever.
    #[error(
        "this task already holds lock `{}` and would wait for itself for ever; \
         pass the guard on, or use another name",
        escaped(key)
    )]
    #[non_exhaustive]
    WouldDeadlock {
        /// The lock's key.
        key: Arc<str>,
    },
    /// The key holds something that is no lock with an expiry, or a lock of a dialect that the
    /// one in use cannot share it with. It is left as it is, and never taken over.
    #[error(
        "key `{}` holds {found}, which is no lock for us; {advice}",
        escaped(key)
    )]
    #[non_exhaustive]
    ForeignKey {
        /// The key.
        key: Arc<str>,
        /// What stands there.
        found: Arc<str>,
        /// What to do about it.
        advice: Arc<str>,
    },
    /// The dialect cannot do what was asked of it.
    #[error("invalid use of `Dialect::{dialect}`: {reason}")]
    #[non_exhaustive]
    InvalidDialect {
        /// The dialect.
        dialect: Dialect,
        /// What it cannot do.
        reason: InvalidDialectReason,
    },
    /// The name cannot be a lock's name.
    #[error("invalid lock name `{}`: {reason}", escaped(name))]
    #[non_exhaustive]
    InvalidName {
        /// The beginning of the name.
        name: Arc<str>,
        /// What is wrong with it.
        reason: InvalidNameReason,
    },
    /// The time to live is out of range.
    #[error("invalid ttl {ttl:?}: use at least 100 ms and at most 24 h")]
    #[non_exhaustive]
    InvalidTtl {
        /// What was asked for.
        ttl: Duration,
    },
    /// A setting of the manager is out of range.
    #[error("invalid `{setting}` {value:?}: {advice}")]
    #[non_exhaustive]
    InvalidSetting {
        /// The name of the builder's method.
        setting: &'static str,
        /// The value that was set.
        value: Duration,
        /// What to set instead.
        advice: &'static str,
    },
    /// The renewal interval does not fit the ttl.
    #[error("invalid renewal interval {every:?}: use at least 10 ms and at most half of the ttl")]
    #[non_exhaustive]
    InvalidRenewal {
        /// What was asked for.
        every: Duration,
    },
    /// The longest hold does not fit the ttl, or the lock is not renewed.
    #[error("invalid longest hold {longest:?}: use more than the ttl, and let the lock be renewed")]
    #[non_exhaustive]
    InvalidMaxHold {
        /// What was asked for.
        longest: Duration,
    },
    /// The shortest hold does not fit the ttl.
    #[error("invalid shortest hold {shortest:?}: use less than the ttl")]
    #[non_exhaustive]
    InvalidMinHold {
        /// What was asked for.
        shortest: Duration,
    },
    /// No manager is there to ask.
    #[error(
        "no lock manager is configured: call `LockManager::connect(url).await?.install_global()?` \
         when the program starts, or set the environment variable DISTRIBUTED_LOCK_URL; a task that is spawned \
         inside of `LockManager::scope` is not in that scope: give it one of its own"
    )]
    NotConfigured,
    /// The call was not made on a tokio runtime, or on one that is shutting down.
    #[error(
        "there is no tokio runtime here, or it is shutting down: call it from a task, or inside of \
         `Runtime::block_on` or `Runtime::enter`"
    )]
    NoRuntime,
    /// A global manager is there already.
    #[error("a global lock manager is already installed; install one, once")]
    AlreadyInstalled,
    /// The process was forked after the manager was made.
    #[error("the process was forked after this lock manager was made; make a new one in the child")]
    Forked,
    /// The server could not be asked, or could not answer.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

/// How many characters of an invalid name an error shows.
const SHOWN_NAME: usize = 40;

impl LockError {
    pub(crate) fn invalid_name(name: &LockName, reason: InvalidNameReason) -> Self {
        let name: String = name.as_str().chars().take(SHOWN_NAME).collect();
        Self::InvalidName {
            name: name.into(),
            reason,
        }
    }

    /// Whether the lock is with somebody else: [`Contended`](Self::Contended) or
    /// [`Timeout`](Self::Timeout).
    #[must_use]
    pub fn is_contended(&self) -> bool {
        matches!(self, Self::Contended { .. } | Self::Timeout { .. })
    }

    /// Returns whether the lock was held and was lost: [`Lost`](Self::Lost).
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }

    /// Returns whether the same call may succeed a moment later: the server could not be reached,
    /// did not reply in time, or refused for a reason that passes, such as a failover.
    ///
    /// A lock that another holder has is [contended](Self::is_contended), not retryable: choose a
    /// longer `wait` instead of a loop.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Backend(error) if error.kind().is_transient())
    }

    /// Returns the key of the lock, when the error is about one.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Contended { key, .. }
            | Self::Timeout { key, .. }
            | Self::Lost { key }
            | Self::WouldDeadlock { key }
            | Self::ForeignKey { key, .. } => Some(key),
            _ => None,
        }
    }

    /// Who holds the lock, when the error knows.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        match self {
            Self::Contended { holder, .. } | Self::Timeout { holder, .. } => holder.as_ref(),
            _ => None,
        }
    }

    pub(crate) fn backend(kind: BackendErrorKind, context: impl Into<String>) -> Self {
        Self::Backend(BackendError::new(kind, context.into(), None))
    }

    /// As [`backend`](Self::backend), where the usual advice would mislead.
    pub(crate) fn advised(
        kind: BackendErrorKind,
        context: impl Into<String>,
        advice: &'static str,
    ) -> Self {
        let error = BackendError::new(kind, context.into(), None);
        Self::Backend(error.with_advice(advice))
    }

    /// Adds to what a backend's error says, such as where its URL came from.
    pub(crate) fn with_detail(self, detail: &'static str) -> Self {
        match self {
            Self::Backend(error) => Self::Backend(error.with_detail(detail)),
            other => other,
        }
    }

    pub(crate) fn caused(
        kind: BackendErrorKind,
        context: impl Into<String>,
        cause: impl Error + Send + Sync + 'static,
    ) -> Self {
        Self::Backend(BackendError::new(
            kind,
            context.into(),
            Some(Arc::new(cause)),
        ))
    }

    /// Whether the server answered that it does not, so that nothing was done.
    #[cfg(feature = "redis")]
    pub(crate) fn is_refusal(&self) -> bool {
        use BackendErrorKind as Kind;
        let LockError::Backend(error) = self else {
            return false;
        };
        matches!(
            error.kind(),
            Kind::Loading
                | Kind::ScriptBusy
                | Kind::OutOfMemory
                | Kind::Misconfigured
                | Kind::NoReplicas
                | Kind::NotPrimary
                | Kind::Authentication
                | Kind::Permission
        )
    }

    /// Whether that will not change by itself.
    #[cfg(feature = "redis")]
    pub(crate) fn is_refused_for_good(&self) -> bool {
        matches!(self, Self::Backend(error) if error.kind() == BackendErrorKind::Permission)
    }

    /// Whether there is no connection, or it broke.
    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(self, Self::Backend(error) if error.kind() == BackendErrorKind::Unreachable)
    }

    /// Whether an answer did not come in time.
    pub(crate) fn is_timed_out(&self) -> bool {
        matches!(self, Self::Backend(error) if error.kind() == BackendErrorKind::TimedOut)
    }
}

/// Who holds a lock that was not to be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    pub(crate) label: Arc<str>,
    pub(crate) remaining: Option<Duration>,
    pub(crate) position: Option<u32>,
    pub(crate) this_process: bool,
}

impl Holder {
    /// What the holder calls itself: by default its host and process id. For a foreign holder,
    /// the beginning of its value.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// How long its lease still lasted when it was seen; it may renew it. `None` for a key
    /// without expiry.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    /// How many stood before the caller in the queue; `None` when the caller did not wait.
    #[must_use]
    pub fn position(&self) -> Option<u32> {
        self.position
    }

    /// Whether the holder is a guard of the same manager, in this process.
    #[must_use]
    pub fn is_this_process(&self) -> bool {
        self.this_process
    }
}

/// A time as people read it.
fn rounded(time: Duration) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const YEAR: u64 = 365 * 24 * HOUR;
    match time.as_secs() {
        0 => format!("{}ms", time.as_nanos().div_ceil(1_000_000)),
        seconds @ 1..10 => match time.subsec_millis() / 100 {
            0 => format!("{seconds}s"),
            tenths => format!("{seconds}.{tenths}s"),
        },
        seconds @ 10..120 => format!("{seconds}s"),
        seconds @ 120..HOUR => format!("{}m", seconds / MINUTE),
        seconds @ HOUR..YEAR => format!("{}h", seconds / HOUR),
        _ => "more than a year".to_owned(),
    }
}

fn about(holder: Option<&Holder>) -> String {
    let Some(holder) = holder else {
        return String::new();
    };
    let text = if holder.this_process {
        format!(": this process holds it (`{}`)", holder.label)
    } else {
        format!(": `{}` holds it", holder.label)
    };
    let lease = holder
        .remaining
        .map(|remaining| format!(", for {} unless renewed", rounded(remaining)));
    let queue = holder
        .position
        .map(|position| format!(", {position} waited before this one"));
    [Some(text), lease, queue].into_iter().flatten().collect()
}

/// [`LockManager::shutdown`](crate::LockManager::shutdown) ended before all was released. What is
/// left is released in the background while the process lives, and ends with its ttl otherwise. (A
/// lock of the dialect [`SetnxExpire`](crate::Dialect::SetnxExpire) whose expiry got no answer may have
/// none.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{open} locks were not released within the shutdown timeout; each ends with its ttl, at the \
     latest"
)]
#[non_exhaustive]
pub struct ShutdownIncomplete {
    /// How many releases and cancels were still open, with the releases that the server forbade and
    /// whose lease lasts: the user has lost the right to run them.
    pub open: usize,
}

#[cfg(test)]
mod tests;
