//! One attempt to acquire a lock.

use std::time::Duration;

use super::Connectivity;
use super::no_expiry::{NO_EXPIRY_LIMIT, NoExpiry};
use crate::backoff::{Backoff, Jitter};
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
    /// In a box, because few attempts have it.
    outage: Option<Box<AttemptOutage>>,
}

/// The time in which an attempt that the server did not answer is made again, as the same attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct AttemptOutage {
    ends_at: Moment,
    backoff: Backoff,
    connectivity: Connectivity,
    /// The next command begins the attempt anew.
    is_over: bool,
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
            outage: None,
        }
    }

    /// Sets for how long after its start the attempt outlasts an outage.
    pub(super) fn outlasts(&mut self, outage_wait: Duration, jitter: Jitter) {
        self.outage = Some(Box::new(AttemptOutage {
            ends_at: self.started.plus(outage_wait),
            backoff: Backoff::new(jitter),
            connectivity: Connectivity::Up,
            is_over: false,
        }));
    }

    /// Records a failure that another try may cure. Returns whether there is time for one, after a pause.
    pub(super) fn tries_again(&mut self, connectivity: Connectivity, now: Moment) -> bool {
        let Some(outage) = &mut self.outage else {
            return false;
        };
        let at = now.plus(outage.backoff.pause());
        outage.connectivity = connectivity;
        outage.is_over = true;
        self.next_poll = at;
        at < outage.ends_at
    }

    /// Returns until when to wait for a connection before the next try.
    pub(super) fn reconnects_until(&self) -> Option<Moment> {
        let outage = self.outage.as_deref();
        let outage = outage.filter(|outage| outage.connectivity == Connectivity::Down)?;
        Some(outage.ends_at)
    }

    pub(super) fn on_connected(&mut self) {
        if let Some(outage) = &mut self.outage {
            outage.connectivity = Connectivity::Up;
        }
    }

    /// Begins the attempt anew if the last one found no server. Returns whether it did.
    pub(super) fn begin_again(&mut self, command_timeout: Duration, now: Moment) -> bool {
        let Some(outage) = self.outage.as_mut().filter(|outage| outage.is_over) else {
            return false;
        };
        outage.is_over = false;
        self.started = now;
        self.until = now.plus(command_timeout).min(outage.ends_at);
        true
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
