//! What is invalid in a request or in a manager's settings.

use std::sync::Arc;
use std::time::Duration;

use lock_protocol::dialect::{Dialect, InvalidDialectReason};
use lock_protocol::key::{InvalidName, InvalidNameReason};
use lock_protocol::kind::{InvalidKindReason, Kind};
use lock_protocol::wire::escaped;

use super::LockError;

/// Which setting is invalid, and why. Carried by [`LockError::Invalid`](crate::LockError::Invalid).
///
/// The message says what to write instead. The same call always fails in the same way.
///
/// `{:?}` writes the variant and the text in one line. `{:#?}` writes all fields.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSetting {
    /// The dialect does not support a setting of the manager or of the request.
    #[error("invalid use of `Dialect::{dialect}`: {reason}")]
    #[non_exhaustive]
    Dialect {
        /// The dialect.
        dialect: Dialect,
        /// What the dialect does not support.
        reason: InvalidDialectReason,
    },
    /// The name is not a valid name of a lock.
    #[error("invalid lock name `{}`: {reason}", escaped(name))]
    #[non_exhaustive]
    Name {
        /// The beginning of the name.
        name: Arc<str>,
        /// What is wrong with it.
        reason: InvalidNameReason,
    },
    /// The time to live is out of range.
    #[error("invalid {}: use at least 100 ms and at most 24 h", setting_or_ttl(*setting, *ttl))]
    #[non_exhaustive]
    Ttl {
        /// The ttl that was requested.
        ttl: Duration,
        /// The setting of the manager that has this ttl: `default_ttl`. `None` for the ttl of a call.
        setting: Option<&'static str>,
    },
    /// The renewal interval does not fit the ttl.
    #[error("invalid renewal interval {every:?}: use at least 10 ms and at most half of the ttl")]
    #[non_exhaustive]
    Renewal {
        /// The interval that was requested.
        every: Duration,
    },
    /// The longest hold does not fit the ttl, or the lock is not renewed.
    #[error("invalid `max_hold` {longest:?}: use more than the ttl, without `Renew::Never`")]
    #[non_exhaustive]
    MaxHold {
        /// The longest hold that was requested.
        longest: Duration,
    },
    /// The shortest hold does not fit the ttl.
    #[error("invalid `min_hold` {shortest:?}: use less than the ttl")]
    #[non_exhaustive]
    MinHold {
        /// The shortest hold that was requested.
        shortest: Duration,
    },
    /// The request or the guard can't keep its name taken for a period.
    ///
    /// ```
    /// # use lock_core::error::{InvalidOncePerReason, InvalidSetting};
    /// # use lock_core::{LockError, LockManager};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let request = locks.lock("report").once_per(Duration::ZERO);
    /// let Err(LockError::Invalid(InvalidSetting::OncePer { reason, .. })) = request.acquire().await else {
    ///     panic!("the period is too short");
    /// };
    /// assert!(matches!(reason, InvalidOncePerReason::OutOfRange { .. }));
    /// # Ok(())
    /// # }
    /// ```
    #[error("invalid `once_per`: {reason}")]
    #[non_exhaustive]
    OncePer {
        /// What is wrong with it.
        reason: InvalidOncePerReason,
    },
    /// A leader waits indefinitely, so the request can't have a `wait`.
    ///
    /// ```
    /// # use lock_core::error::InvalidSetting;
    /// # use lock_core::{LockError, LockManager};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let scheduler = locks.lock("scheduler").wait(Duration::from_secs(5));
    /// let error = scheduler.lead(async |_term| ()).await.unwrap_err();
    /// assert!(matches!(error, LockError::Invalid(InvalidSetting::Wait { .. })));
    /// # Ok(())
    /// # }
    /// ```
    #[error("invalid `wait` {wait:?}: a leader waits until it is elected; remove `wait`")]
    #[non_exhaustive]
    Wait {
        /// The wait that was requested.
        wait: Duration,
    },
    /// The request of a leader has an `outage_wait`. A leader waits indefinitely, also for a server that can't be reached.
    /// Nothing was sent.
    ///
    /// ```
    /// # use lock_core::error::InvalidSetting;
    /// # use lock_core::{LockError, LockManager};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let scheduler = locks.lock("scheduler").outage_wait(Duration::from_secs(60));
    /// let error = scheduler.lead(async |_term| ()).await.unwrap_err();
    /// assert!(matches!(error, LockError::Invalid(InvalidSetting::OutageWait { .. })));
    /// # Ok(())
    /// # }
    /// ```
    #[error(
        "invalid `outage_wait` {outage_wait:?}: a leader waits until it is elected, also during outages; remove \
         `outage_wait`"
    )]
    #[non_exhaustive]
    OutageWait {
        /// The time that was requested.
        outage_wait: Duration,
    },
    /// The kind of the lock is invalid, or does not fit the rest of the request. Nothing was sent.
    ///
    /// ```
    /// # use lock_core::error::InvalidSetting;
    /// # use lock_core::{Kind, LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let error = locks.lock("mailer").permits(0).acquire().await.unwrap_err();
    /// let LockError::Invalid(InvalidSetting::Kind { kind, reason, .. }) = error else {
    ///     panic!("{error}");
    /// };
    /// assert_eq!(kind, Kind::Permits { of: 0, weight: 1 });
    /// assert!(reason.to_string().starts_with("use at least 1 permit"));
    /// # Ok(())
    /// # }
    /// ```
    #[error("invalid kind of lock ({kind}): {reason}")]
    #[non_exhaustive]
    Kind {
        /// The kind that was requested.
        kind: Kind,
        /// What is wrong with it.
        reason: InvalidKindReason,
    },
    /// An [`Override`](crate::config::Override) is invalid, or does not fit the other options of this call.
    #[error("invalid override for `{}`: {reason}", escaped(template))]
    #[non_exhaustive]
    Override {
        /// The template of the override.
        template: Arc<str>,
        /// What does not fit.
        reason: InvalidOverrideReason,
    },
    /// The lock can't be [handed over](crate::LockGuard::into_ticket), or the ticket doesn't fit the request that resumes
    /// it.
    ///
    /// ```
    /// # use lock_core::error::{InvalidSetting, InvalidTicketReason};
    /// # use lock_core::{LockError, LockManager};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let order = locks.lock("order:42").acquire().await?;
    /// let ticket = order.into_ticket(Duration::from_secs(60)).await?;
    /// let error = locks.lock("order:7").resume(ticket).await.unwrap_err();
    /// let LockError::Invalid(InvalidSetting::Ticket { reason, .. }) = error else {
    ///     panic!("{error}");
    /// };
    /// assert_eq!(reason, InvalidTicketReason::OtherLock);
    /// # Ok(())
    /// # }
    /// ```
    #[error("invalid use of a lock ticket: {reason}")]
    #[non_exhaustive]
    Ticket {
        /// What doesn't fit.
        reason: InvalidTicketReason,
    },
    /// A setting without a variant of its own is invalid: one of the manager, the
    /// [`expect_unchanged`](crate::admin::ForceRelease::expect_unchanged) of a forced release, or the
    /// [`interval`](crate::observe::Observer::interval) of an observer.
    #[error("invalid setting `{setting}` (`{value}`): {advice}")]
    #[non_exhaustive]
    Manager {
        /// The name of the builder's method, or of the environment variable.
        setting: &'static str,
        /// The value that was set.
        value: Arc<str>,
        /// What to set instead.
        advice: Arc<str>,
    },
}

impl InvalidSetting {
    /// The code of the error that carries this.
    pub(super) fn code(&self) -> &'static str {
        match self {
            Self::Dialect { .. } => "invalid_dialect",
            Self::Name { .. } => "invalid_name",
            Self::Ttl { .. } => "invalid_ttl",
            Self::Renewal { .. } => "invalid_renewal",
            Self::MaxHold { .. } => "invalid_max_hold",
            Self::MinHold { .. } => "invalid_min_hold",
            Self::OncePer { .. } => "invalid_once_per",
            Self::Wait { .. } => "invalid_wait",
            Self::OutageWait { .. } => "invalid_outage_wait",
            Self::Kind { .. } => "invalid_kind",
            Self::Override { .. } => "invalid_override",
            Self::Ticket { .. } => "invalid_ticket",
            Self::Manager { .. } => "invalid_setting",
        }
    }
}

impl From<InvalidName> for InvalidSetting {
    fn from(error: InvalidName) -> Self {
        let (name, reason) = error.into_parts();
        Self::Name { name, reason }
    }
}

fn setting_or_ttl(setting: Option<&str>, ttl: Duration) -> String {
    match setting {
        Some(setting) => format!("setting `{setting}` (`{ttl:?}`)"),
        None => format!("ttl {ttl:?}"),
    }
}

impl From<InvalidTicketReason> for InvalidSetting {
    fn from(reason: InvalidTicketReason) -> Self {
        Self::Ticket { reason }
    }
}

/// Why a lock can't be handed over, or a ticket doesn't fit the request that resumes it. The message says what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidTicketReason {
    /// The lock is a read lock or a permit.
    #[error(
        "only an exclusive lock can be handed over, because all holders of a shared lock have the same \
         fencing token; release the lock, and let the other side acquire it"
    )]
    Kind,
    /// The guard has a `min_hold`.
    #[error(
        "a lock with `min_hold` can't be handed over, because its key has to stay locked after the \
         release; remove `min_hold`"
    )]
    MinHold,
    /// The guard has a `once_per`.
    #[error(
        "a lock with `once_per` can't be handed over, because its own holder has to say that the work is done; \
         set `once_per` on the request that resumes the ticket"
    )]
    OncePer,
    /// The dialect of the lock isn't the native one.
    #[error("only native locks can be handed over; use `Dialect::Native`")]
    Dialect,
    /// The lock is at a quorum of servers.
    #[error(
        "a lock at a quorum can't be handed over, because two callers could each win some of the \
         servers, and both would lose it; use one server with replicas, or a cluster"
    )]
    Quorum,
    /// The ticket is of a manager with another prefix.
    #[error(
        "the ticket is of a manager with another `prefix`; resume it with the prefix that made it"
    )]
    OtherPrefix,
    /// The ticket is for another lock than the request.
    #[error(
        "the ticket is for another lock than the request; pass the ticket's name to `lock`, or use \
         `LockManager::resume`"
    )]
    OtherLock,
}

impl From<InvalidOncePerReason> for LockError {
    fn from(reason: InvalidOncePerReason) -> Self {
        InvalidSetting::OncePer { reason }.into()
    }
}

/// Why a request or a guard can't keep its name taken for a [period](crate::LockRequest::once_per). The message says what
/// to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidOncePerReason {
    /// The period is out of range.
    #[error("the period is {period:?}; use at least 100 ms and at most 366 days")]
    #[non_exhaustive]
    OutOfRange {
        /// The period that was requested.
        period: Duration,
    },
    /// The request has a `min_hold` too, which keeps the name taken after a failure as well.
    #[error("it can't be combined with `min_hold`; remove one of them")]
    MinHold,
    /// The locks are at a quorum of servers, and a server that restarts forgets what was done.
    #[error(
        "a quorum of servers can't remember it, because a server that restarts forgets its keys; use one server, \
         Sentinel or a cluster"
    )]
    Quorum,
    /// The body of `run` doesn't say whether it succeeded.
    #[error(
        "`run` doesn't know whether the body succeeded; use `run_once`, whose body returns a `Result`, or `acquire` and \
         the guard's `complete`"
    )]
    Run,
    /// A leader works until it loses the lock or gives it up, so its work is never done.
    #[error("a leader's work is never done; remove `once_per`, or use `run_once`")]
    Leader,
    /// The request has no period.
    #[error("the request has none; set `once_per` to the period for which the work is done")]
    Missing,
}

/// Why an [`Override`](crate::config::Override) is invalid, or does not fit a call. The message says what to
/// change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidOverrideReason {
    /// It sets nothing.
    #[error("it sets no time; set `ttl`, `wait` or `max_hold`, or remove the override")]
    Empty,
    /// The braces of the template are not balanced, so no lock has this template.
    #[error(
        "the braces of the template are not balanced; write the template as in the code, such as \
         `order:{{order_id}}`"
    )]
    Template,
    /// The ttl is out of range.
    #[error("`ttl` {ttl:?} is out of range; use at least 100 ms and at most 24 h")]
    #[non_exhaustive]
    Ttl {
        /// The ttl of the override.
        ttl: Duration,
    },
    /// The longest hold is not longer than the ttl.
    #[error(
        "`max_hold` {max_hold:?} must be longer than `ttl` {ttl:?}; set both in the override so \
         that they fit"
    )]
    #[non_exhaustive]
    MaxHold {
        /// The longest hold: the override's, or else the call's or the manager's default.
        max_hold: Duration,
        /// The ttl: the override's, or else the call's or the shortest one.
        ttl: Duration,
    },
    /// The override sets a longest hold, and the call is never renewed.
    #[error("`max_hold` needs renewal, and the call sets `renew = never`; remove `max_hold`")]
    NeverRenewed,
    /// The call sets a renewal interval that is too long for the ttl.
    #[error(
        "`ttl` {ttl:?} must be at least twice the renewal interval {every:?} of the call; raise `ttl`"
    )]
    #[non_exhaustive]
    Renewal {
        /// The renewal interval of the call.
        every: Duration,
        /// The ttl of the override.
        ttl: Duration,
    },
    /// The call sets a shortest hold that is too long for the ttl.
    #[error("`ttl` {ttl:?} must be longer than `min_hold` {min_hold:?} of the call; raise `ttl`")]
    #[non_exhaustive]
    MinHold {
        /// The shortest hold of the call.
        min_hold: Duration,
        /// The ttl of the override.
        ttl: Duration,
    },
    /// The dialect of the call does not support the ttl.
    #[error("`ttl` does not fit the dialect of the call: {0}")]
    Dialect(InvalidDialectReason),
}
