//! Statuses and responses of tonic 0.14.

use std::collections::HashMap;
use std::sync::Arc;

use tonic::metadata::MetadataValue;
use tonic::{Code, Response, Status};
use tonic_types::{ErrorDetails, StatusExt};

use super::from_skipped::{FromSkipped, OUTCOME};
use super::mapping::ProblemKind;
use crate::error::LockError;

impl From<LockError> for Status {
    /// Makes a status with the details `ErrorInfo` and, where a client should call again, `RetryInfo`.
    /// The status has no key, no label and no text of the error. Its `source` is the error, for logs:
    /// tonic does not send it.
    fn from(error: LockError) -> Self {
        let kind = ProblemKind::of(&error);
        let mut details = ErrorDetails::with_error_info(kind.reason(), "lock-core", HashMap::new());
        if let Some(time) = kind.retry_after(&error) {
            details.set_retry_info(Some(time));
        }
        let message = kind.title().to_lowercase();
        let mut status = Self::with_error_details(kind.code(), message, details);
        status.set_source(Arc::new(error));
        status
    }
}

impl ProblemKind {
    /// `ABORTED` says that the client may repeat the whole operation. Clients and proxies repeat
    /// `UNAVAILABLE` by themselves, which is safe where the body never ran.
    pub(crate) fn code(self) -> Code {
        match self {
            Self::Contended | Self::Timeout | Self::Done | Self::Lost => Code::Aborted,
            Self::QueueFull => Code::ResourceExhausted,
            Self::ShuttingDown | Self::Unavailable => Code::Unavailable,
            Self::TicketEnded => Code::FailedPrecondition,
            Self::InvalidName => Code::InvalidArgument,
            Self::Misconfigured => Code::Internal,
        }
    }

    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Contended => "LOCK_CONTENDED",
            Self::Done => "LOCK_DONE",
            Self::Timeout => "LOCK_TIMEOUT",
            Self::QueueFull => "LOCK_QUEUE_FULL",
            Self::Lost => "LOCK_LOST",
            Self::TicketEnded => "LOCK_TICKET_ENDED",
            Self::ShuttingDown => "LOCK_SHUTTING_DOWN",
            Self::Unavailable => "LOCK_UNAVAILABLE",
            Self::InvalidName => "LOCK_INVALID_NAME",
            Self::Misconfigured => "LOCK_MISCONFIGURED",
        }
    }
}

impl<T: FromSkipped> FromSkipped for Response<T> {
    /// Returns the skipped message, with the metadata `lock-outcome: skipped`.
    fn skipped() -> Self {
        let mut response = Self::new(T::skipped());
        let (name, value) = OUTCOME;
        let value = MetadataValue::from_static(value);
        response.metadata_mut().insert(name, value);
        response
    }
}
