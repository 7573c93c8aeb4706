//! Distinguishes a lock that is about to get its expiry from a key that is not a lock.

use std::sync::Arc;
use std::time::Duration;

use super::outcome::ObservedHolder;
use crate::clock::Moment;
use crate::poll_schedule::{HolderExpiry, NO_EXPIRY_GRACE, NO_EXPIRY_POLL};

/// How much longer than its wait a call may take to find out whether a key gets an expiry.
pub(super) const NO_EXPIRY_LIMIT: Duration = Duration::from_millis(230);

/// Distinguishes a lock that is about to get its expiry from a key that is not a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct NoExpiry {
    /// When the key was first seen without an expiry, and its latest value.
    since: Option<(Moment, Arc<str>)>,
}

impl NoExpiry {
    /// Records an observation. Returns whether the key has no expiry.
    pub(super) fn observe(
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
    pub(super) fn left(&self, now: Moment) -> Duration {
        let since = self.since.as_ref().map_or(now, |(since, _)| *since);
        NO_EXPIRY_GRACE.saturating_sub(now.since(since))
    }

    /// Returns when to poll a key without an expiry again.
    pub(super) fn next_poll(&self, now: Moment) -> Moment {
        now.plus(NO_EXPIRY_POLL.min(self.left(now)))
    }

    /// Returns until when a call that has to end by `limit` polls the key; `None` if the key has an
    /// expiry.
    pub(super) fn latest(&self, limit: Moment) -> Option<Moment> {
        let (since, _) = self.since.as_ref()?;
        Some(since.plus(NO_EXPIRY_LIMIT).min(limit))
    }

    /// Returns the latest value of the key if it had no expiry at the last poll.
    pub(super) fn value(&self) -> Option<Arc<str>> {
        let (_, value) = self.since.as_ref()?;
        Some(Arc::clone(value))
    }
}
