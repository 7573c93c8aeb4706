//! Distinguishes a lock that is about to get its expiry from a key that is not a lock.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::ObservedHolder;
use crate::error::{LockError, foreign_key};
use crate::protocol::clock::Moment;
use crate::protocol::key::LockKey;
use crate::protocol::poll_schedule::{HolderExpiry, NO_EXPIRY_GRACE};

/// How much longer than its wait a call may take to find out whether a key gets an expiry.
pub(crate) const NO_EXPIRY_LIMIT: Duration = Duration::from_millis(230);

/// Distinguishes a lock that is about to get its expiry from a key that is not a lock.
#[derive(Debug, Default)]
pub(crate) struct NoExpiry {
    /// When the key was first seen without an expiry, and its latest value.
    since: Option<(Moment, Arc<str>)>,
}

impl NoExpiry {
    /// Records an observation. Returns whether the key has no expiry.
    pub(crate) fn observe(
        &mut self,
        holder_expiry: HolderExpiry,
        holder: Option<&ObservedHolder>,
        now: Moment,
    ) -> bool {
        if holder_expiry != HolderExpiry::NoExpiry {
            self.since = None;
            return false;
        }
        let since = self.since.as_ref().map_or(now, |(since, _)| *since);
        let value = holder.map_or_else(|| "".into(), |observed| Arc::clone(&observed.label));
        self.since = Some((since, value));
        true
    }

    /// Returns how much longer the key may stay without an expiry.
    pub(crate) fn left(&self, now: Moment) -> Duration {
        let since = self.since.as_ref().map_or(now, |(since, _)| *since);
        NO_EXPIRY_GRACE.saturating_sub(now.since(since))
    }

    /// Returns until when a call that has to end by `limit` polls the key; `None` if the key has an
    /// expiry.
    pub(crate) fn latest(&self, limit: Moment) -> Option<Moment> {
        let (since, _) = self.since.as_ref()?;
        Some(since.plus(NO_EXPIRY_LIMIT).min(limit))
    }

    pub(crate) fn error(&self, key: &LockKey) -> LockError {
        let value = self.since.as_ref().map_or("", |(_, value)| value);
        foreign_key::no_expiry(key, value)
    }

    /// Returns the error if the key had no expiry at the last poll.
    pub(crate) fn take_error(&self, key: &LockKey) -> Option<LockError> {
        self.since.is_some().then(|| self.error(key))
    }

    /// Replaces the timeout of a poll that had too little time by the error for the missing expiry.
    pub(crate) fn instead_of(&self, error: LockError, key: &LockKey) -> LockError {
        let known = self.take_error(key).filter(|_| error.is_timed_out());
        known.unwrap_or(error)
    }
}
