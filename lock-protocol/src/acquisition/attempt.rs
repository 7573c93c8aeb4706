//! One attempt to acquire a lock.

use std::time::Duration;

use super::no_expiry::{NO_EXPIRY_LIMIT, NoExpiry};
use crate::clock::Moment;
use crate::lease::{LeaseConfig, LeaseEnds};

/// One attempt. It ends at the first reply, unless the key has no expiry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Attempt {
    started: Moment,
    until: Moment,
    resend: Resend,
    next_poll: Moment,
    /// The ends of the lease that a downgrade continues.
    continued: Option<LeaseEnds>,
}

/// Whether the command may be sent again when its connection breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Resend {
    Allowed,
    Used,
}

impl Attempt {
    pub(super) fn new(started: Moment, until: Moment) -> Self {
        Self {
            started,
            until,
            resend: Resend::Allowed,
            next_poll: started,
            continued: None,
        }
    }

    /// Sets the ends of the lease that a downgrade continues.
    pub(super) fn continues(&mut self, ends: LeaseEnds) {
        self.continued = Some(ends);
    }

    /// Returns whether the holder of the lease that a downgrade continues has lost it.
    pub(super) fn is_lost(&self, now: Moment) -> bool {
        let deadline = self.continued.and_then(|ends| ends.deadline);
        deadline.is_some_and(|deadline| now >= deadline)
    }

    /// Returns the settings of a lease that a command sent at `sent` confirms.
    pub(super) fn lease_config(&self, config: LeaseConfig, sent: Moment) -> LeaseConfig {
        let continued = self.continued.map(|ends| ends.continued(config, sent));
        continued.unwrap_or(config)
    }

    pub(super) fn has_ended(&self, now: Moment) -> bool {
        now >= self.until
    }

    /// Returns the time that is left for a command. A key without an expiry is polled for a while,
    /// also when the command timeout is shorter.
    pub(super) fn left(&self, no_expiry: &NoExpiry, now: Moment) -> Duration {
        let longest = self.until.max(self.started.plus(NO_EXPIRY_LIMIT));
        let until = no_expiry.latest(longest).unwrap_or(self.until);
        until.since(now)
    }

    /// Returns whether the command is sent again after its connection broke. The server may have
    /// closed an idle connection, which the first command finds out. A second command with the same
    /// owner id is the same attempt.
    pub(super) fn may_resend(&mut self, now: Moment) -> bool {
        let before = std::mem::replace(&mut self.resend, Resend::Used);
        before == Resend::Allowed && !self.has_ended(now)
    }

    pub(super) fn poll_again_at(&mut self, at: Moment) {
        self.next_poll = at;
    }

    pub(super) fn next_poll(&self) -> Moment {
        self.next_poll
    }
}
