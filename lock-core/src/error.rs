//! What can go wrong, and who is at fault.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::dialect::{Dialect, DialectFault};
use crate::key::{LockName, NameFault};
use crate::wire::escaped;

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
    Timeout {
        /// The lock's key.
        key: Arc<str>,
        /// How long was waited.
        waited: Duration,
        /// Who holds it, when that is known.
        holder: Option<Holder>,
    },
    /// The lock was held and is not any more: its lease ran out, or its key was taken away.
    /// What the body did until then stays done.
    #[error("the lock was lost while it was held: its lease ended or its key was removed")]
    Lost,
    /// The task asks for a lock that it already holds further up.
    #[error("this task already holds the lock further up, and would wait for itself for ever")]
    WouldDeadlock,
    /// Fewer than half of the servers granted the lock.
    #[error("too few servers granted the lock")]
    NoQuorum,
    /// The key holds something that is no lock with an expiry, or a lock of a dialect that the
    /// one in use cannot share it with. It is left as it is, and never taken over.
    #[error(
        "key `{}` holds {found}, which is no lock for us; {advice}",
        escaped(key)
    )]
    ForeignKey {
        /// The key.
        key: Arc<str>,
        /// What stands there.
        found: Arc<str>,
        /// What to do about it.
        advice: Arc<str>,
    },
    /// The dialect cannot do what was asked of it.
    #[error("invalid use of `Dialect::{dialect}`: {fault}")]
    InvalidDialect {
        /// The dialect.
        dialect: Dialect,
        /// What it cannot do.
        fault: DialectFault,
    },
    /// The name cannot be a lock's name.
    #[error("invalid lock name `{}`: {fault}", escaped(name))]
    InvalidName {
        /// The beginning of the name.
        name: Arc<str>,
        /// What is wrong with it.
        fault: NameFault,
    },
    /// The time to live is out of range.
    #[error("invalid ttl {ttl:?}: use at least 100 ms and at most 24 h")]
    InvalidTtl {
        /// What was asked for.
        ttl: Duration,
    },
    /// The wait is zero.
    #[error("invalid wait: it must be longer than zero; leave it out to try once")]
    InvalidWait,
    /// The renewal interval does not fit the ttl.
    #[error("invalid renewal interval {every:?}: use at least 10 ms and at most half of the ttl")]
    InvalidRenewal {
        /// What was asked for.
        every: Duration,
    },
    /// The longest hold does not fit the ttl, or the lock is not renewed.
    #[error("invalid longest hold {longest:?}: use more than the ttl, and let the lock be renewed")]
    InvalidMaxHold {
        /// What was asked for.
        longest: Duration,
    },
    /// The shortest hold does not fit the ttl.
    #[error("invalid shortest hold {shortest:?}: use less than the ttl")]
    InvalidMinHold {
        /// What was asked for.
        shortest: Duration,
    },
    /// No manager is there to ask.
    #[error(
        "no lock manager is configured: call `LockManager::connect(url).await?.install_global()?` \
         when the program starts, or set the environment variable LOCK_URL; a task that is spawned \
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
    pub(crate) fn invalid_name(name: &LockName, fault: NameFault) -> Self {
        let name: String = name.as_str().chars().take(SHOWN_NAME).collect();
        Self::InvalidName {
            name: name.into(),
            fault,
        }
    }

    /// Whether the lock is with somebody else: [`Contended`](Self::Contended) or
    /// [`Timeout`](Self::Timeout).
    #[must_use]
    pub fn is_contended(&self) -> bool {
        matches!(self, Self::Contended { .. } | Self::Timeout { .. })
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
        let mut inner = Inner::new(kind, context.into(), None);
        inner.advice = advice;
        Self::Backend(BackendError(Arc::new(inner)))
    }

    /// Adds to what a backend's error says, such as where its URL came from.
    pub(crate) fn with_detail(self, detail: &'static str) -> Self {
        match self {
            Self::Backend(error) => {
                let inner = Inner {
                    detail: Some(detail),
                    ..(*error.0).clone()
                };
                Self::Backend(BackendError(Arc::new(inner)))
            }
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

    /// Whether the same call may succeed a moment later.
    pub(crate) fn is_worth_a_retry(&self) -> bool {
        matches!(self, Self::Backend(error) if error.kind().is_transient())
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

/// What kind of trouble a server, or the way to it, is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendErrorKind {
    /// The URL is malformed, or asks for what this library does not support: TLS, a Sentinel, a
    /// cluster, or a server where the feature `redis` is missing.
    InvalidUrl,
    /// No connection, or a connection that broke.
    Unreachable,
    /// No answer in time, which includes a queue of very many dead waiters. Whether the command was
    /// carried out is settled in the background.
    TimedOut,
    /// The server is still reading its data set (LOADING).
    Loading,
    /// The server is busy with a script or a function (BUSY).
    ScriptBusy,
    /// The server has no memory left for writes (OOM).
    OutOfMemory,
    /// The server cannot persist and refuses writes (MISCONF).
    Misconfigured,
    /// Too few replicas are connected for the server to accept writes (NOREPLICAS).
    NoReplicas,
    /// The server is a replica (READONLY).
    NotPrimary,
    /// User or password are missing or wrong (NOAUTH, WRONGPASS).
    Authentication,
    /// The user may not run the command, or not on this key or channel (NOPERM).
    Permission,
    /// The server accepts no more clients (maxclients).
    TooManyClients,
    /// The server is too old, a Sentinel or a node of a cluster, or answers what no server of ours
    /// would.
    Unsupported,
    /// The clock of this machine and that of the server differ by more than the
    /// [dialect](crate::Dialect) can bear.
    ClocksDiffer,
    /// A release got no answer, and must not be sent again in this [dialect](crate::Dialect): the
    /// lock ends with its ttl, if it was not released.
    Unsettled,
    /// The keeper of this process, which renews and releases, could not be started.
    Keeper,
    /// An error that is none of the above; see its source.
    Other,
}

impl BackendErrorKind {
    fn is_transient(self) -> bool {
        matches!(
            self,
            Self::Unreachable
                | Self::TimedOut
                | Self::Loading
                | Self::ScriptBusy
                | Self::OutOfMemory
                | Self::Misconfigured
                | Self::NoReplicas
                | Self::NotPrimary
                | Self::TooManyClients
        )
    }

    fn advice(self) -> &'static str {
        match self {
            Self::InvalidUrl => "use redis://, unix:// or memory://",
            Self::Unreachable => {
                "check that the server runs, that host and port are right, and that it takes more clients"
            }
            Self::TimedOut => "check the server's load and the network, or raise `command_timeout`",
            Self::Loading => "the server is still loading its data; try again in a moment",
            Self::ScriptBusy => "a long script blocks the server; end it, or wait for it",
            Self::OutOfMemory => "raise the server's maxmemory, or free some",
            Self::Misconfigured => "the server cannot save to disk and refuses writes; see its log",
            Self::NoReplicas => "too few replicas are connected for min-replicas-to-write",
            Self::NotPrimary => "connect to the primary",
            Self::Authentication => "check user and password in the URL",
            Self::Permission => "grant the user the commands and keys that README lists",
            Self::TooManyClients => "raise the server's maxclients, or close connections",
            Self::ClocksDiffer => {
                "synchronize the clocks of both machines (NTP), or use another dialect"
            }
            Self::Unsettled => "in this dialect it is not sent twice; the lock ends with its ttl",
            Self::Unsupported => "use Redis 7.0 or later, or Valkey",
            Self::Keeper => "the process could not start a thread; check its limits",
            Self::Other => "see the cause",
        }
    }
}

/// A server, or the way to it, failed. Cheap to clone.
#[derive(Clone)]
pub struct BackendError(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: BackendErrorKind,
    context: String,
    detail: Option<&'static str>,
    advice: &'static str,
    cause: Option<Arc<dyn Error + Send + Sync>>,
}

impl Inner {
    fn new(
        kind: BackendErrorKind,
        context: String,
        cause: Option<Arc<dyn Error + Send + Sync>>,
    ) -> Self {
        Self {
            kind,
            context,
            detail: None,
            advice: kind.advice(),
            cause,
        }
    }
}

impl BackendError {
    fn new(
        kind: BackendErrorKind,
        context: String,
        cause: Option<Arc<dyn Error + Send + Sync>>,
    ) -> Self {
        Self(Arc::new(Inner::new(kind, context, cause)))
    }

    /// What kind of trouble it is.
    #[must_use]
    pub fn kind(&self) -> BackendErrorKind {
        self.0.kind
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner {
            context,
            detail,
            advice,
            ..
        } = &*self.0;
        match detail {
            Some(detail) => write!(f, "{context} ({detail}): {advice}"),
            None => write!(f, "{context}: {advice}"),
        }
    }
}

impl fmt::Debug for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendError")
            .field("kind", &self.0.kind)
            .field("context", &self.0.context)
            .field("detail", &self.0.detail)
            .field("cause", &self.0.cause)
            .finish()
    }
}

impl Error for BackendError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0
            .cause
            .as_deref()
            .map(|cause| cause as &(dyn Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder() -> Holder {
        Holder {
            label: "web-1:42".into(),
            remaining: Some(Duration::from_secs(3)),
            position: Some(2),
            this_process: false,
        }
    }

    #[test]
    fn an_error_is_small_and_travels() {
        fn travels<T: Clone + Send + Sync + 'static>() {}
        travels::<LockError>();
        assert!(size_of::<LockError>() <= 128, "{}", size_of::<LockError>());
    }

    #[test]
    fn messages_name_the_key_and_the_holder() {
        let error = LockError::Timeout {
            key: "lock:a".into(),
            waited: Duration::from_secs(5),
            holder: Some(holder()),
        };
        assert_eq!(
            error.to_string(),
            "lock `lock:a` was not free within 5s: `web-1:42` holds it, for 3s unless renewed, \
             2 waited before this one"
        );
        let error = LockError::Contended {
            key: "lock:a".into(),
            holder: None,
        };
        assert_eq!(
            error.to_string(),
            "lock `lock:a` is busy; try later, or say how long to `wait`"
        );
        assert!(error.is_contended() && error.holder().is_none());
    }

    #[test]
    fn times_are_rounded_for_people() {
        for (time, expected) in [
            (Duration::ZERO, "0ms"),
            (Duration::from_nanos(51_890_774), "52ms"),
            (Duration::from_nanos(1), "1ms"),
            (Duration::from_secs(1), "1s"),
            (Duration::from_millis(1_290), "1.2s"),
            (Duration::from_millis(29_998), "29s"),
            (Duration::from_secs(119), "119s"),
            (Duration::from_secs(121), "2m"),
            (Duration::from_secs(86_399), "23h"),
            (Duration::MAX, "more than a year"),
        ] {
            assert_eq!(rounded(time), expected);
        }
    }

    #[test]
    fn busy_down_and_refused_are_told_apart() {
        let down = LockError::backend(BackendErrorKind::Unreachable, "no connection");
        let refused = LockError::backend(BackendErrorKind::Authentication, "refused");
        assert!(!down.is_contended() && down.is_worth_a_retry());
        assert!(!refused.is_worth_a_retry());
        assert!(!LockError::Lost.is_contended() && !LockError::Lost.is_worth_a_retry());
    }

    #[test]
    fn the_message_does_not_repeat_the_cause() {
        let cause = std::io::Error::other("wires cut");
        let error = LockError::caused(
            BackendErrorKind::Unreachable,
            "cannot ask the server",
            cause,
        );
        assert!(!error.to_string().contains("wires cut"));
        assert_eq!(error.source().unwrap().to_string(), "wires cut");
        assert!(error.to_string().contains("check that the server runs"));
    }
}
