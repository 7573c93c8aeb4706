//! An operation on its way to a server, and what became of it.

use std::sync::Arc;

use crate::error::LockError;
use lock_protocol::acquisition::{AcquireOutcome, RenewOutcome};
use lock_protocol::cleanup::ReleaseOutcome;
use lock_protocol::codec::Lane;
use lock_protocol::op::{Op, OpKind, Outcome};
use lock_protocol::resp::ScriptsBy;

/// One operation on its way. The caller keeps it, so a caller that stops waiting finds in it what was sent.
pub(crate) struct Call<'a> {
    pub(crate) op: Op<'a>,
    /// `None` until the server has executed or refused it, or something has prevented that.
    pub(crate) outcome: Option<Result<Outcome, LockError>>,
    /// How its commands name their scripts.
    pub(crate) scripts: ScriptsBy,
    /// How many commands it has in the exchange that is under way.
    pub(crate) commands: usize,
    pub(crate) lane: Lane,
    /// Whether messages on the channel of its key arrive, and its name, once it has waited for that.
    pub(crate) channel: Option<(bool, Arc<str>)>,
}

impl<'a> Call<'a> {
    pub(crate) fn new(kind: OpKind<'a>) -> Self {
        Self {
            op: Op::new(kind),
            outcome: None,
            scripts: ScriptsBy::Hash,
            commands: 0,
            lane: Lane::Shared,
            channel: None,
        }
    }

    /// Returns whether it runs in this lane and has no outcome.
    pub(crate) fn is_open(&self, lane: Lane) -> bool {
        self.outcome.is_none() && self.lane == lane
    }

    pub(crate) fn acquired(self) -> Result<AcquireOutcome, LockError> {
        match self.outcome {
            Some(Ok(Outcome::Acquired(outcome))) => Ok(outcome),
            other => Err(error_of(other)),
        }
    }

    pub(crate) fn renewed(self) -> Result<RenewOutcome, LockError> {
        match self.outcome {
            Some(Ok(Outcome::Renewed(outcome))) => Ok(outcome),
            other => Err(error_of(other)),
        }
    }

    pub(crate) fn released(self) -> Result<ReleaseOutcome, LockError> {
        match self.outcome {
            Some(Ok(Outcome::Released(outcome))) => Ok(outcome),
            other => Err(error_of(other)),
        }
    }
}

/// Returns the error of a call that has no outcome of its kind. Without any outcome, its time ran out unsent.
fn error_of(outcome: Option<Result<Outcome, LockError>>) -> LockError {
    match outcome {
        Some(Err(error)) => error,
        Some(Ok(_)) => LockError::unreadable(),
        None => LockError::unsent(),
    }
}
