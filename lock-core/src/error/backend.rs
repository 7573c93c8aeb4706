//! The errors of a backend: the server or the connection to it failed.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

#[cfg(feature = "redis")]
use super::LockError;
#[cfg(feature = "redis")]
use super::provider::{OnPanic, ProviderError};
use lock_protocol::acquisition::FailureClass;
#[cfg(feature = "redis")]
use lock_protocol::redirect::Redirect;

/// Why a server, or the connection to it, failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendErrorKind {
    /// The URL is malformed, or needs a feature of the crate that is not enabled: `redis`, `tls`,
    /// `cluster` or `quorum`. Or the server does not have the database whose number the URL names. Or a
    /// setting of the builder doesn't fit the URL: two logins, or certificates without TLS.
    InvalidUrl,
    /// TLS failed: a certificate is invalid, unknown or missing, a file cannot be read, or the settings
    /// do not fit each other.
    Tls,
    /// There is no connection, or the connection broke.
    Unreachable,
    /// No reply came in time. A queue with very many dead waiters can also cause this. The background
    /// worker cancels a command that the server may have executed.
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
    /// Fewer replicas than [`Confirm`](crate::config::Confirm) asks, or not the disk, acknowledged the lock in time.
    NotReplicated,
    /// The server is a replica (READONLY). Or another server became the primary before the reply arrived, because the
    /// Sentinels named it or the URL's name moved; then the old one may have executed the command, and the background
    /// worker cancels it.
    NotPrimary,
    /// No Sentinel knows a primary of the service, or none of them can be reached, and the last known
    /// primary cannot be reached either.
    NoPrimary,
    /// The cluster does not serve the slot of the lock (CLUSTERDOWN), for example during a failover.
    ClusterDown,
    /// The slot of the lock moves to another node, and did not arrive in time (TRYAGAIN). Holders keep
    /// their locks meanwhile.
    SlotMoving,
    /// The user or the password is missing or wrong (NOAUTH, WRONGPASS), or the provider of credentials failed.
    Authentication,
    /// The user has no right to run the command, or to use this key or channel (NOPERM).
    Permission,
    /// The server accepts no more clients (maxclients).
    TooManyClients,
    /// The server is too old, is not of the kind that the URL names (a Sentinel, a node of a cluster), is an
    /// active replica, doesn't know a command, or does not reply as Redis does. Or it lacks the commands of
    /// [`ReleaseMethod::Conditional`](crate::dialect::ReleaseMethod::Conditional).
    Unsupported,
    /// The clocks of this machine and of the server differ by more than the
    /// [dialect](crate::dialect::Dialect) allows.
    ClocksDiffer,
    /// A release got no reply, and must not be sent again in this [dialect](crate::dialect::Dialect). If the
    /// server did not execute it, the lock expires with its ttl.
    ReleaseUnconfirmed,
    /// The background worker of this process, which renews and releases locks, could not start.
    BackgroundWorker,
    /// The server refused the command in words that this library doesn't know, for example because a hosting service
    /// enforces a limit; the source quotes them. A call that waits tries again until its wait ends.
    Other,
}

impl BackendErrorKind {
    pub(super) fn class(self) -> FailureClass {
        match self {
            Self::Unreachable => FailureClass::Unreachable,
            Self::TimedOut => FailureClass::TimedOut,
            Self::OutOfMemory => FailureClass::OutOfMemory,
            Self::Loading
            | Self::ScriptBusy
            | Self::Misconfigured
            | Self::NoReplicas
            | Self::NotReplicated
            | Self::NotPrimary
            | Self::NoPrimary
            | Self::ClusterDown
            | Self::SlotMoving
            | Self::TooManyClients => FailureClass::Retry,
            Self::Permission => FailureClass::Forbidden,
            Self::ReleaseUnconfirmed => FailureClass::MustNotRepeat,
            Self::InvalidUrl
            | Self::Tls
            | Self::Authentication
            | Self::Unsupported
            | Self::ClocksDiffer
            | Self::BackgroundWorker => FailureClass::Fatal,
            Self::Other => FailureClass::Unknown,
        }
    }

    /// Returns whether the same call may succeed a moment later, as
    /// [`LockError::is_retryable`](crate::LockError::is_retryable) does.
    #[must_use]
    pub fn is_retryable(self) -> bool {
        self.class().is_transient()
    }

    /// Returns the kind as a word that doesn't change: its name in snake case, such as `unreachable` or `timed_out`. It
    /// is the [`code`](crate::LockError::code) of the error.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidUrl => "invalid_url",
            Self::Unreachable => "unreachable",
            Self::TimedOut => "timed_out",
            Self::Loading => "loading",
            Self::ScriptBusy => "script_busy",
            Self::OutOfMemory => "out_of_memory",
            Self::Misconfigured => "misconfigured",
            Self::NoReplicas => "no_replicas",
            Self::NotReplicated => "not_replicated",
            Self::NotPrimary => "not_primary",
            Self::Tls => "tls",
            Self::NoPrimary => "no_primary",
            Self::ClusterDown => "cluster_down",
            Self::SlotMoving => "slot_moving",
            Self::Authentication => "authentication",
            Self::Permission => "permission",
            Self::TooManyClients => "too_many_clients",
            Self::Unsupported => "unsupported",
            Self::ClocksDiffer => "clocks_differ",
            Self::ReleaseUnconfirmed => "release_unconfirmed",
            Self::BackgroundWorker => "background_worker",
            Self::Other => "other",
        }
    }

    fn advice(self) -> &'static str {
        match self {
            Self::InvalidUrl => {
                "use redis://, rediss://, unix://, redis+sentinel://, redis+cluster://, \
                 redis+quorum:// or memory://"
            }
            Self::Tls => {
                "check that the port speaks TLS, and the certificates of the server and of this client"
            }
            Self::NoPrimary => "check the Sentinels, and the name of the service in the URL",
            Self::ClusterDown => {
                "wait for the failover, or check `cluster info` and `cluster slots` on the nodes"
            }
            Self::SlotMoving => "end the move of the slot, or wait longer",
            Self::Unreachable => {
                "check that the server runs, that host and port are correct, and that it accepts more \
                 clients"
            }
            Self::TimedOut => "check the server's load and the network, or raise `command_timeout`",
            Self::Loading => "the server is still loading its data; try again in a moment",
            Self::ScriptBusy => "a long script blocks the server; wait for it, or end it",
            Self::OutOfMemory => "raise the server's maxmemory, or free memory",
            Self::Misconfigured => "the server cannot save to disk and refuses writes; see its log",
            Self::NoReplicas => "too few replicas are connected for min-replicas-to-write",
            Self::NotReplicated => "check the replicas, or ask for fewer of them in `confirm`",
            Self::NotPrimary => "connect to the primary",
            Self::Authentication => "check user and password in the URL",
            Self::Permission => {
                "grant the user this right; `lockctl doctor` names all that are missing, and the page \
                 `redis` of the guide lists those that locks need"
            }
            Self::TooManyClients => "raise the server's maxclients, or close connections",
            Self::ClocksDiffer => {
                "synchronize the clocks of both machines (NTP), or use another dialect"
            }
            Self::ReleaseUnconfirmed => {
                "in this dialect a release is not sent twice; the lock ends with its ttl"
            }
            Self::Unsupported => "use Redis 6.2 or later, or Valkey",
            Self::BackgroundWorker => "the process could not start a thread; check its limits",
            Self::Other => "see the cause",
        }
    }
}

/// An error of a server, or of the connection to it. Cheap to clone.
#[derive(Clone)]
pub struct BackendError(Arc<Details>);

#[derive(Clone)]
struct Details {
    kind: BackendErrorKind,
    context: String,
    detail: Option<&'static str>,
    advice: Cow<'static, str>,
    cause: Option<ErrorCause>,
    /// What the node of a cluster replied.
    #[cfg(feature = "redis")]
    redirect: Option<Redirect>,
}

#[derive(Clone)]
enum ErrorCause {
    Own(Arc<dyn Error + Send + Sync>),
    #[cfg(feature = "redis")]
    Provider(Arc<ProviderError>),
}

impl ErrorCause {
    #[cfg_attr(
        not(feature = "redis"),
        allow(
            clippy::unnecessary_wraps,
            reason = "without `redis` there is one kind of cause"
        )
    )]
    fn get(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Own(cause) => {
                let cause: &(dyn Error + 'static) = &**cause;
                Some(cause)
            }
            #[cfg(feature = "redis")]
            Self::Provider(cause) => cause.get(),
        }
    }
}

impl Details {
    fn new(kind: BackendErrorKind, context: String, cause: Option<ErrorCause>) -> Self {
        Self {
            kind,
            context,
            detail: None,
            advice: kind.advice().into(),
            cause,
            #[cfg(feature = "redis")]
            redirect: None,
        }
    }
}

impl BackendError {
    pub(super) fn new(
        kind: BackendErrorKind,
        context: String,
        cause: Option<Arc<dyn Error + Send + Sync>>,
    ) -> Self {
        let cause = cause.map(ErrorCause::Own);
        Self(Arc::new(Details::new(kind, context, cause)))
    }

    /// The same error with another advice than its kind gives.
    pub(crate) fn with_advice(&self, advice: impl Into<Cow<'static, str>>) -> Self {
        Self(Arc::new(Details {
            advice: advice.into(),
            ..(*self.0).clone()
        }))
    }

    /// Returns what happened, without the advice.
    #[cfg(feature = "redis")]
    pub(crate) fn context(&self) -> &str {
        &self.0.context
    }

    /// The error of several attempts, of which this is one. `context` tells all of them.
    #[cfg(feature = "redis")]
    pub(crate) fn of_several(&self, context: String) -> Self {
        Self(Arc::new(Details {
            context,
            ..(*self.0).clone()
        }))
    }

    /// The same error with a detail, such as the source of its URL. An earlier detail stays, because it knows more.
    pub(super) fn with_detail(&self, detail: &'static str) -> Self {
        Self(Arc::new(Details {
            detail: self.0.detail.or(Some(detail)),
            ..(*self.0).clone()
        }))
    }

    /// The same error with what the node of a cluster replied.
    #[cfg(feature = "redis")]
    pub(crate) fn with_redirect(&self, redirect: Redirect) -> Self {
        Self(Arc::new(Details {
            redirect: Some(redirect),
            ..(*self.0).clone()
        }))
    }

    /// Returns what the node of a cluster replied.
    #[cfg(feature = "redis")]
    pub(crate) fn redirect(&self) -> Option<&Redirect> {
        self.0.redirect.as_ref()
    }

    /// Returns the kind of the failure.
    #[must_use]
    pub fn kind(&self) -> BackendErrorKind {
        self.0.kind
    }
}

#[cfg(feature = "redis")]
impl LockError {
    /// The error of a provider of credentials that failed.
    pub(crate) fn from_provider(error: Box<dyn Error + Send + Sync>, on_panic: OnPanic) -> Self {
        let cause = ErrorCause::Provider(Arc::new(ProviderError::new(error, on_panic)));
        let (kind, text) = (
            BackendErrorKind::Authentication,
            "the provider of credentials failed",
        );
        Self::Backend(BackendError(Arc::new(Details {
            advice: "see the cause; each new connection asks it again".into(),
            ..Details::new(kind, text.to_owned(), Some(cause))
        })))
    }
}

impl fmt::Display for BackendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Details {
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

impl BackendError {
    /// Writes all fields, for `{:#?}`.
    pub(super) fn fmt_fields(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendError")
            .field("kind", &self.0.kind)
            .field("context", &self.0.context)
            .field("detail", &self.0.detail)
            .field("cause", &self.source())
            .finish()
    }
}

impl Error for BackendError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.cause.as_ref().and_then(ErrorCause::get)
    }
}
