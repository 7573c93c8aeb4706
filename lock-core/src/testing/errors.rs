//! Errors to call your own error handling with: how it maps them to responses, exit codes or alerts.
//!
//! Other crates can't write the variants of [`LockError`] that have fields, because later versions may add fields.
//! These functions make them. A variant without fields needs no function: write [`LockError::ShuttingDown`].
//!
//! | Error | Function |
//! |---|---|
//! | [`Contended`](LockError::Contended) | [`contended`] |
//! | [`Timeout`](LockError::Timeout) | [`timeout`] |
//! | [`QueueFull`](LockError::QueueFull) | [`queue_full`] |
//! | [`Done`](LockError::Done) | [`done`] |
//! | [`Lost`](LockError::Lost) | [`lost`], and [`revoked`] for the one reason that has fields |
//! | [`TicketEnded`](LockError::TicketEnded) | [`ticket_ended`] |
//! | [`WouldDeadlock`](LockError::WouldDeadlock) | [`would_deadlock`] |
//! | [`ForeignKey`](LockError::ForeignKey) | [`foreign_key`] |
//! | [`Invalid`](LockError::Invalid) | [`invalid_name`], [`invalid_setting`]; a manager in memory returns the others |
//! | [`NoQuorum`](LockError::NoQuorum) | [`no_quorum`] |
//! | [`Backend`](LockError::Backend) | [`backend`] |
//! | [`NotConfigured`](LockError::NotConfigured), [`NoRuntime`](LockError::NoRuntime), [`AlreadyInstalled`](LockError::AlreadyInstalled), [`ShuttingDown`](LockError::ShuttingDown), [`Forked`](LockError::Forked) | none |
//!
//! ```
//! use std::time::Duration;
//!
//! use lock_core::LockError;
//! use lock_core::error::BackendErrorKind;
//! use lock_testing::errors;
//!
//! /// The code under test.
//! fn exit_code(error: &LockError) -> u8 {
//!     match error {
//!         error if error.is_contended() => 75,
//!         error if error.is_retryable() => 69,
//!         _ => 78,
//!     }
//! }
//!
//! assert_eq!(exit_code(&errors::timeout("lock:order:7", Duration::from_secs(5))), 75);
//! assert_eq!(exit_code(&errors::backend(BackendErrorKind::Loading)), 69);
//! assert_eq!(exit_code(&errors::backend(BackendErrorKind::Permission)), 78);
//! assert_eq!(exit_code(&LockError::NotConfigured), 78);
//! ```
//!
//! To see the error in the call itself, with its holder, make the lock fail with [`Faults`](super::Faults).

use std::time::{Duration, SystemTime};

use crate::error::{BackendErrorKind, InvalidSetting, LockError};
use lock_protocol::key::{InvalidNameReason, LockName};
use lock_protocol::kind::Kind;
use lock_protocol::loss::LossReason;

/// Makes a [`LockError::Contended`] without a holder.
#[must_use]
pub fn contended(key: impl Into<String>) -> LockError {
    LockError::Contended {
        key: key.into().into(),
        holder: None,
        requested: Kind::Exclusive,
    }
}

/// Makes a [`LockError::Timeout`] without a holder.
#[must_use]
pub fn timeout(key: impl Into<String>, waited: Duration) -> LockError {
    LockError::Timeout {
        key: key.into().into(),
        waited,
        holder: None,
        requested: Kind::Exclusive,
        position: None,
    }
}

/// Makes a [`LockError::QueueFull`] without a holder: this many callers wait.
#[must_use]
pub fn queue_full(key: impl Into<String>, position: u64, pace: Option<Duration>) -> LockError {
    LockError::QueueFull {
        key: key.into().into(),
        position,
        holder: None,
        requested: Kind::Exclusive,
        pace,
    }
}

/// Makes a [`LockError::Done`]: `by` has done the work a moment ago, and the name stays taken for `free_in`.
#[must_use]
pub fn done(key: impl Into<String>, by: impl Into<String>, free_in: Duration) -> LockError {
    LockError::Done {
        key: key.into().into(),
        since: SystemTime::now(),
        by: by.into().into(),
        free_in,
    }
}

/// Makes a [`LockError::Lost`].
#[must_use]
pub fn lost(key: impl Into<String>, reason: LossReason) -> LockError {
    LockError::Lost {
        key: key.into().into(),
        reason,
    }
}

/// Makes a [`LockError::Lost`] with the reason [`LossReason::Revoked`]: the operator `by` released the lock.
#[must_use]
pub fn revoked(key: impl Into<String>, by: impl Into<String>) -> LockError {
    lost(key, LossReason::revoked(by.into().into(), None))
}

/// Makes a [`LockError::TicketEnded`].
#[must_use]
pub fn ticket_ended(key: impl Into<String>, reason: LossReason) -> LockError {
    LockError::TicketEnded {
        key: key.into().into(),
        reason,
    }
}

/// Makes a [`LockError::WouldDeadlock`].
#[must_use]
pub fn would_deadlock(key: impl Into<String>) -> LockError {
    LockError::WouldDeadlock {
        key: key.into().into(),
    }
}

/// Makes a [`LockError::ForeignKey`]. `found` says what the key holds, such as `a list`.
#[must_use]
pub fn foreign_key(key: impl Into<String>, found: impl Into<String>) -> LockError {
    LockError::ForeignKey {
        key: key.into().into(),
        found: found.into().into(),
        advice: "remove the key, or use another name or prefix".into(),
    }
}

/// Makes a [`LockError::Invalid`] with [`InvalidSetting::Name`].
#[must_use]
pub fn invalid_name(name: impl Into<LockName>, reason: InvalidNameReason) -> LockError {
    LockError::invalid_name(&name.into(), reason)
}

/// Makes a [`LockError::Invalid`] with [`InvalidSetting::Manager`], for a setting of the builder such as `prefix`.
#[must_use]
pub fn invalid_setting(setting: &'static str, value: impl Into<String>) -> LockError {
    let (value, advice) = (value.into().into(), "use another value".into());
    LockError::Invalid(InvalidSetting::Manager {
        setting,
        value,
        advice,
    })
}

/// Makes a [`LockError::NoQuorum`]: `granted` of `servers` confirmed.
#[must_use]
pub fn no_quorum(granted: usize, servers: usize) -> LockError {
    LockError::NoQuorum {
        granted,
        needed: servers / 2 + 1,
        servers,
    }
}

/// Makes a [`LockError::Backend`] of this kind, with the advice that the library gives for it.
#[must_use]
pub fn backend(kind: BackendErrorKind) -> LockError {
    LockError::backend(kind, "the lock server failed in a test")
}
