//! The error of most calls: why a lock was not acquired, or was lost.

use std::borrow::Cow;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use lock_protocol::acquisition::{Failure, FailureClass, ObservedHolder};
use lock_protocol::key::{InvalidName, InvalidNameReason, LockName};
use lock_protocol::kind::Kind;
use lock_protocol::loss::LossReason;
use lock_protocol::wire::escaped;

use super::holder::{about, rounded};
use super::{BackendError, BackendErrorKind, Holder, InvalidSetting};

/// Why a lock was not acquired, or was lost.
///
/// - Another holder has the lock ([`Contended`](Self::Contended), [`Timeout`](Self::Timeout),
///   [`QueueFull`](Self::QueueFull)), or has done its work for this period ([`Done`](Self::Done)).
/// - The server failed: [`Backend`](Self::Backend), and [`NoQuorum`](Self::NoQuorum) where several
///   servers hold each lock.
/// - A name, a time or another setting is invalid: [`Invalid`](Self::Invalid).
/// - The lock was held and was lost: [`Lost`](Self::Lost).
/// - The call was refused: all other variants.
///
/// Only the first group means that another caller does the work, or has done it. When an acquire fails, the caller
/// doesn't have the lock, and must not do the work. A failed [`renew`](crate::LockGuard::renew) is different: unless the error is
/// `Lost`, the lock is held until its lease ends.
///
/// `{:?}` writes the variant, the text and the causes in one line, so that `main` may return the error.
/// `{:#?}` writes all fields.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another holder has the lock, or its `min_hold` keeps it locked, and the request did not wait.
    #[error(
        "lock `{}` is busy{}; try later, or set a longer `wait`",
        escaped(key),
        about(holder.as_deref(), *requested, None)
    )]
    #[non_exhaustive]
    Contended {
        /// The lock's key.
        key: Arc<str>,
        /// The holder, if it is known.
        holder: Option<Box<Holder>>,
        /// The kind of lock that the call asked for.
        requested: Kind,
    },
    /// Another holder had the lock for the whole wait.
    #[error(
        "lock `{}` was not free within {}{}; try later, or set a longer `wait`",
        escaped(key),
        rounded(*waited),
        about(holder.as_deref(), *requested, *position)
    )]
    #[non_exhaustive]
    Timeout {
        /// The lock's key.
        key: Arc<str>,
        /// How long the call waited.
        waited: Duration,
        /// The holder, if it is known.
        holder: Option<Box<Holder>>,
        /// The kind of lock that the call asked for.
        requested: Kind,
        /// How many waiters were ahead of the call in the queue. `None` where there is no queue, and when the server
        /// did not say it.
        position: Option<u64>,
    },
    /// Another holder has the lock, and as many callers wait for it as the request's
    /// [`max_queue`](crate::LockRequest::max_queue) accepts. The call did not wait, and left nothing in the queue.
    #[error(
        "lock `{}` is busy, and its queue is full{}; try later, or raise `max_queue`",
        escaped(key),
        about(holder.as_deref(), *requested, Some(*position))
    )]
    #[non_exhaustive]
    QueueFull {
        /// The lock's key.
        key: Arc<str>,
        /// How many callers wait.
        position: u64,
        /// The holder, if it is known.
        holder: Option<Box<Holder>>,
        /// The kind of lock that the call asked for.
        requested: Kind,
        /// The mean time after which the lock went from one waiter to the next lately, as the waiters of this manager
        /// saw it. Locks of one template count together. `None` if no waiter of this manager has got the lock yet.
        pace: Option<Duration>,
    },
    /// There is nothing to do: the work that the lock protects has succeeded, and its period isn't over. See
    /// [`once_per`](crate::LockRequest::once_per).
    #[error(
        "the work of lock `{}` is done: `{by}` succeeded, and `once_per` keeps the name taken for another {}; \
         skip the work, or try again after that",
        escaped(key),
        rounded(*free_in)
    )]
    #[non_exhaustive]
    Done {
        /// The lock's key.
        key: Arc<str>,
        /// When the lock was acquired for the work that succeeded, on this machine's clock. Admin's
        /// [`LockStatus::Done`](crate::admin::LockStatus::Done) has it on the server's clock.
        since: SystemTime,
        /// The label of the manager whose work succeeded, with its [tag](crate::LockManagerBuilder::holder_tag).
        by: Arc<str>,
        /// How long the name stays taken, from the error on.
        free_in: Duration,
    },
    /// The lock was held and was lost. [`LossReason`] has the six causes: its lease ended, its key was removed, its
    /// key has another owner, an operator released it, its longest hold ended, or another server process took over
    /// without it. The effects of the body up to the loss remain.
    #[error(
        "lock `{}` was lost while it was held: {reason}; check the work that was done under it",
        escaped(key)
    )]
    #[non_exhaustive]
    Lost {
        /// The lock's key.
        key: Arc<str>,
        /// Why, as [`LockGuard::loss_reason`](crate::LockGuard::loss_reason) says it.
        reason: LossReason,
    },
    /// The [ticket](crate::LockTicket) is no longer worth anything: another caller has resumed it, its lease ended, or an
    /// operator released the lock. [`LossReason`] says which, as far as the server knows. The caller doesn't have the
    /// lock.
    #[error(
        "the ticket for lock `{}` can no longer be resumed: {reason}; acquire the lock anew, and check \
         whether another process has resumed the ticket",
        escaped(key)
    )]
    #[non_exhaustive]
    TicketEnded {
        /// The lock's key.
        key: Arc<str>,
        /// [`Expired`](LossReason::Expired) when nobody resumed the ticket in time. [`Replaced`](LossReason::Replaced)
        /// when another caller resumed it or acquired the lock since. [`Revoked`](LossReason::Revoked) when an operator
        /// released the lock. [`Removed`](LossReason::Removed) when the lock is free again, or when the server did not
        /// say why.
        reason: LossReason,
    },
    /// The call runs in a body of [`run`](crate::LockRequest::run) or of the attribute that holds the
    /// same lock. The task would wait for itself forever.
    #[error(
        "this task already holds lock `{}` and would wait for itself forever; \
         pass the guard, or `&Held<..>`, down instead of locking again",
        escaped(key)
    )]
    #[non_exhaustive]
    WouldDeadlock {
        /// The lock's key.
        key: Arc<str>,
    },
    /// The key holds a value that is not a lock with an expiry. Or it holds a lock in a dialect
    /// that cannot share a key with the dialect of the request. The library neither changes nor
    /// takes over the key.
    #[error("key `{}` holds {found}, and cannot be locked; {advice}", escaped(key))]
    #[non_exhaustive]
    ForeignKey {
        /// The key.
        key: Arc<str>,
        /// The value that the key holds.
        found: Arc<str>,
        /// What to do about it.
        advice: Arc<str>,
    },
    /// A name, a kind, a time or another setting is invalid, or doesn't fit the rest of the request or of the manager.
    /// [`InvalidSetting`] says which one.
    ///
    /// ```
    /// # use lock_core::error::InvalidSetting;
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let locks = LockManager::in_memory();
    /// let error = locks.lock("").acquire().await.unwrap_err();
    /// assert!(matches!(error, LockError::Invalid(InvalidSetting::Name { .. })), "{error}");
    /// # }
    /// ```
    #[error(transparent)]
    Invalid(#[from] InvalidSetting),
    /// No manager is installed, and the environment variable `DISTRIBUTED_LOCK_URL` is not set; or it is set, and
    /// [`LockManager::current`](crate::LockManager::current) was called before anything connected to its URL.
    #[error(
        "no lock manager is configured: set the environment variable DISTRIBUTED_LOCK_URL, to which the attribute and \
         `LockManager::current_or_connect` connect, or call \
         `LockManager::connect(url).await?.install_global()?` when the program starts; a task that is \
         spawned inside `LockManager::scope` is outside that scope and needs its own `scope`"
    )]
    NotConfigured,
    /// The call ran outside of a tokio runtime, or on a runtime that is shutting down.
    #[error(
        "there is no tokio runtime here, or it is shutting down; make the call in a task, or inside \
         `Runtime::block_on` or `Runtime::enter`"
    )]
    NoRuntime,
    /// Another global manager is already installed.
    #[error(
        "a global lock manager is already installed; install one manager once, in `main`; in tests and \
         app builders use `ScopeLayer` or `LockManager::scope`"
    )]
    AlreadyInstalled,
    /// [`close`](crate::LockManager::close) or [`shutdown`](crate::LockManager::shutdown) was called before or during this
    /// call.
    #[error(
        "the lock manager is closed or shutting down, and acquires no more locks; calls end in this way when the \
         process stops, and otherwise need a new manager"
    )]
    ShuttingDown,
    /// The process was forked after the manager was made.
    #[error("the process was forked after this lock manager was made; make a new one in the child")]
    Forked,
    /// Too few of the independent servers of a quorum gave or confirmed the lock: the others failed, took
    /// too long, or restarted a moment ago.
    #[error(
        "{granted} of {servers} lock servers confirmed, and {needed} are needed; check that the servers \
         run, and whether some restarted within the `quarantine`"
    )]
    #[non_exhaustive]
    NoQuorum {
        /// How many servers confirmed.
        granted: usize,
        /// How many servers are more than half of them.
        needed: usize,
        /// How many servers the manager has.
        servers: usize,
    },
    /// The server failed or refused, or the client could not reach it.
    #[error(transparent)]
    Backend(#[from] BackendError),
}

impl From<InvalidName> for LockError {
    fn from(error: InvalidName) -> Self {
        Self::Invalid(error.into())
    }
}

impl LockError {
    pub(crate) fn invalid_name(name: &LockName, reason: InvalidNameReason) -> Self {
        InvalidName::new(name, reason).into()
    }

    /// Returns whether another holder has the lock, or has done its work: [`Contended`](Self::Contended),
    /// [`Timeout`](Self::Timeout), [`QueueFull`](Self::QueueFull) or [`Done`](Self::Done).
    #[must_use]
    pub fn is_contended(&self) -> bool {
        matches!(
            self,
            Self::Contended { .. }
                | Self::Timeout { .. }
                | Self::QueueFull { .. }
                | Self::Done { .. }
        )
    }

    /// Returns whether the work is done for its period: [`Done`](Self::Done).
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let report = || locks.lock("report").once_per(Duration::from_secs(3600));
    /// report().acquire().await?.complete().await?;
    /// let error = report().acquire().await.unwrap_err();
    /// assert!(error.is_done() && error.is_contended());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Done { .. })
    }

    /// Returns whether the lock was held and was lost: [`Lost`](Self::Lost).
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Self::Lost { .. })
    }

    /// Returns whether the same call may succeed a moment later: the client could not reach the server, the server did
    /// not reply in time, or it refused for a reason that is temporary, such as a failover, or unknown.
    ///
    /// A lock that another holder has is [contended](Self::is_contended), not retryable. Set a longer
    /// `wait` instead of calling in a loop.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.class().is_transient()
    }

    /// Returns the code of the error: a short word that doesn't change, for the labels of metrics, for logs, and for
    /// other programs. It is the `error.type` of the library's [spans, events and metrics](crate::guide::telemetry).
    ///
    /// A code never contains a value of the request. These are all of them:
    ///
    /// | Error | Code |
    /// |---|---|
    /// | [`Contended`](Self::Contended) | `contended` |
    /// | [`Timeout`](Self::Timeout) | `timeout` |
    /// | [`QueueFull`](Self::QueueFull) | `queue_full` |
    /// | [`Done`](Self::Done) | `done` |
    /// | [`Lost`](Self::Lost) | `lost` |
    /// | [`TicketEnded`](Self::TicketEnded) | `ticket_ended` |
    /// | [`WouldDeadlock`](Self::WouldDeadlock) | `would_deadlock` |
    /// | [`ForeignKey`](Self::ForeignKey) | `foreign_key` |
    /// | [`Invalid`](Self::Invalid) | `invalid_dialect`, `invalid_name`, `invalid_ttl`, `invalid_renewal`, `invalid_max_hold`, `invalid_min_hold`, `invalid_once_per`, `invalid_wait`, `invalid_outage_wait`, `invalid_kind`, `invalid_override`, `invalid_ticket`; `invalid_setting` for [`Manager`](InvalidSetting::Manager) |
    /// | [`NotConfigured`](Self::NotConfigured) | `not_configured` |
    /// | [`NoRuntime`](Self::NoRuntime) | `no_runtime` |
    /// | [`AlreadyInstalled`](Self::AlreadyInstalled) | `already_installed` |
    /// | [`ShuttingDown`](Self::ShuttingDown) | `shutting_down` |
    /// | [`Forked`](Self::Forked) | `forked` |
    /// | [`NoQuorum`](Self::NoQuorum) | `no_quorum` |
    /// | [`Backend`](Self::Backend) | the kind of the failure, such as `unreachable`: see [`BackendErrorKind::as_str`] |
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let locks = LockManager::in_memory();
    /// let error = locks.lock("").acquire().await.unwrap_err();
    /// assert_eq!(error.code(), "invalid_name");
    /// # }
    /// ```
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::Contended { .. } => "contended",
            Self::Timeout { .. } => "timeout",
            Self::QueueFull { .. } => "queue_full",
            Self::Done { .. } => "done",
            Self::Lost { .. } => "lost",
            Self::TicketEnded { .. } => "ticket_ended",
            Self::WouldDeadlock { .. } => "would_deadlock",
            Self::ForeignKey { .. } => "foreign_key",
            Self::Invalid(setting) => setting.code(),
            Self::NotConfigured => "not_configured",
            Self::NoRuntime => "no_runtime",
            Self::AlreadyInstalled => "already_installed",
            Self::ShuttingDown => "shutting_down",
            Self::Forked => "forked",
            Self::NoQuorum { .. } => "no_quorum",
            Self::Backend(error) => error.kind().as_str(),
        }
    }

    /// Returns the key of the lock, if the error is about one lock.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Contended { key, .. }
            | Self::Timeout { key, .. }
            | Self::QueueFull { key, .. }
            | Self::Done { key, .. }
            | Self::Lost { key, .. }
            | Self::TicketEnded { key, .. }
            | Self::WouldDeadlock { key }
            | Self::ForeignKey { key, .. } => Some(key),
            _ => None,
        }
    }

    /// Returns the holder of the lock, if the error knows it.
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        match self {
            Self::Contended { holder, .. }
            | Self::Timeout { holder, .. }
            | Self::QueueFull { holder, .. } => holder.as_deref(),
            _ => None,
        }
    }

    /// The error of a caller that finds the work done. The holder is the last one, whose work succeeded.
    pub(crate) fn done(key: Arc<str>, last: ObservedHolder) -> Self {
        let now = SystemTime::now();
        let age = last.held_for.unwrap_or_default();
        Self::Done {
            key,
            since: now.checked_sub(age).unwrap_or(now),
            by: last.label,
            free_in: last.remaining.unwrap_or_default(),
        }
    }

    pub(crate) fn backend(kind: BackendErrorKind, context: impl Into<String>) -> Self {
        Self::Backend(BackendError::new(kind, context.into(), None))
    }

    /// The error for a reply that cannot be read.
    pub(crate) fn unreadable() -> Self {
        Self::backend(
            BackendErrorKind::Unsupported,
            "the server sent a reply that no script of this library returns",
        )
    }

    /// The error for a call that ran out of time before it was sent.
    pub(crate) fn unsent() -> Self {
        Self::backend(
            BackendErrorKind::TimedOut,
            "the call ran out of time before it was sent",
        )
    }

    /// As [`backend`](Self::backend), for an error that needs another advice than its kind gives.
    pub(crate) fn advised(
        kind: BackendErrorKind,
        context: impl Into<String>,
        advice: impl Into<Cow<'static, str>>,
    ) -> Self {
        let error = BackendError::new(kind, context.into(), None);
        Self::Backend(error.with_advice(advice))
    }

    /// Adds a detail to a backend's error, such as the source of its URL.
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

    /// Returns whether the connection broke, or could not be made.
    #[cfg(feature = "redis")]
    pub(crate) fn is_unreachable(&self) -> bool {
        matches!(self, Self::Backend(error) if error.kind() == BackendErrorKind::Unreachable)
    }

    /// Whether the server refused the command in its reply, so that the command had no effect.
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
                | Kind::ClusterDown
                | Kind::SlotMoving
                | Kind::Authentication
                | Kind::Permission
        )
    }
}

#[doc(hidden)]
impl Failure for LockError {
    fn class(&self) -> FailureClass {
        match self {
            Self::Backend(error) => error.kind().class(),
            Self::ForeignKey { .. } => FailureClass::ForeignKey,
            Self::NoQuorum { .. } => FailureClass::Retry,
            _ => FailureClass::Fatal,
        }
    }
}
