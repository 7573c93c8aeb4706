//! What a client learns about an error. All frameworks share this table.

use std::time::Duration;

use super::retry_after::{until_a_place, until_free};
use crate::error::{InvalidSetting, LockError};
use lock_protocol::key::InvalidNameReason;

/// The kind of a problem, as clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProblemKind {
    Contended,
    Done,
    Timeout,
    QueueFull,
    Lost,
    TicketEnded,
    ShuttingDown,
    Unavailable,
    InvalidName,
    Misconfigured,
}

impl ProblemKind {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 10] = [
        Self::Contended,
        Self::Done,
        Self::Timeout,
        Self::QueueFull,
        Self::Lost,
        Self::TicketEnded,
        Self::ShuttingDown,
        Self::Unavailable,
        Self::InvalidName,
        Self::Misconfigured,
    ];

    pub(super) fn of(error: &LockError) -> Self {
        match error {
            LockError::Contended { .. } => Self::Contended,
            LockError::Done { .. } => Self::Done,
            LockError::Timeout { .. } => Self::Timeout,
            LockError::QueueFull { .. } => Self::QueueFull,
            LockError::Lost { .. } => Self::Lost,
            LockError::TicketEnded { .. } => Self::TicketEnded,
            LockError::ShuttingDown => Self::ShuttingDown,
            LockError::NoQuorum { .. } => Self::Unavailable,
            LockError::Backend(error) if error.kind().is_retryable() => Self::Unavailable,
            // Values of the request make these names. Other faults of a name are the program's.
            LockError::Invalid(InvalidSetting::Name {
                reason: InvalidNameReason::EmptyValue | InvalidNameReason::TooLong,
                ..
            }) => Self::InvalidName,
            _ => Self::Misconfigured,
        }
    }

    /// The end of the problem's `type`, and the heading in `guide::problems`.
    pub(crate) fn slug(self) -> &'static str {
        match self {
            Self::Contended => "contended",
            Self::Done => "done",
            Self::Timeout => "timeout",
            Self::QueueFull => "queue-full",
            Self::Lost => "lost",
            Self::TicketEnded => "ticket-ended",
            Self::ShuttingDown => "shutting-down",
            Self::Unavailable => "unavailable",
            Self::InvalidName => "invalid-name",
            Self::Misconfigured => "misconfigured",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Contended => "The resource is in use",
            Self::Done => "The operation is done for this period",
            Self::Timeout => "The resource was not free in time",
            Self::QueueFull => "Too many requests wait for the resource",
            Self::Lost => "The operation was interrupted",
            Self::TicketEnded => "The reservation has ended",
            Self::ShuttingDown => "The service is shutting down",
            Self::Unavailable => "The lock service is not available",
            Self::InvalidName => "A value in the request cannot name a resource",
            Self::Misconfigured => "The service is misconfigured",
        }
    }

    /// The time after which the client should call again. None when the same call fails again, when its work may be half
    /// done, and when there is nothing left to do.
    pub(crate) fn retry_after(self, error: &LockError) -> Option<Duration> {
        match self {
            Self::Contended | Self::Timeout => Some(until_free(error)),
            Self::QueueFull => Some(until_a_place(error)),
            Self::ShuttingDown => Some(Duration::from_secs(1)),
            Self::Unavailable => Some(Duration::from_secs(2)),
            Self::Done
            | Self::Lost
            | Self::TicketEnded
            | Self::InvalidName
            | Self::Misconfigured => None,
        }
    }
}

#[cfg(any(feature = "axum-0-8", feature = "actix-web-4"))]
impl ProblemKind {
    /// A held lock is a conflict and no failure of the service: proxies eject an instance that
    /// replies 503. 429 is what clients slow down after. An interrupted operation is 500, because clients repeat a 503 by themselves.
    pub(crate) fn status(self) -> u16 {
        match self {
            Self::Contended | Self::Timeout | Self::Done => 409,
            Self::QueueFull => 429,
            Self::TicketEnded => 410,
            Self::Lost | Self::Misconfigured => 500,
            Self::ShuttingDown | Self::Unavailable => 503,
            Self::InvalidName => 400,
        }
    }
}
