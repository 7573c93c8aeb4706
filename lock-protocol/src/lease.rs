//! The state of a lease, and the next action for it: a pure state machine of events and time.
//!
//! Validity is counted from *before* the confirming command was sent, because the server may have
//! begun to count at any time after that. It ends earlier than the server's lease by a margin, for
//! clocks that run at different rates. S. Sanfilippo's Redlock has the same margin.

use std::time::Duration;

use crate::clock::Moment;
use crate::kind::Kind;
use crate::loss::LossReason;
use crate::renew::Renew;
use crate::ttl::Ttl;

/// The rate by which two clocks may differ, as a divisor: one percent. Quartz is a hundred times
/// better. The clock of a virtual machine may be this bad while it is being corrected.
pub(super) const DRIFT_DIVISOR: u32 = 100;
/// Expiry on the server is in whole milliseconds, so each end can be off by one.
pub(super) const ROUNDING: Duration = Duration::from_millis(2);
/// The longest lease that a handover gives. A frozen waiter delays the other waiters by this time,
/// and not by a whole ttl.
pub(crate) const HANDOVER_LEASE: Duration = Duration::from_secs(2);
/// `PEXPIRE` with zero deletes the key.
const MIN_RENEWED: Duration = Duration::from_millis(1);

/// A failed renewal is repeated after a tenth of the remaining lease, within these bounds.
pub const RETRY: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(1);

/// The longest lease that is counted. Near the limit, sums saturate, and a share of a longer lease
/// would be more than the sum had added.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The end of a confirmed lease, as its holder counts it.
pub fn deadline(sent: Moment, remaining: Duration) -> Moment {
    let remaining = remaining.min(LONGEST);
    sent.plus(remaining)
        .minus(remaining / DRIFT_DIVISOR)
        .minus(ROUNDING)
}

/// As [`deadline`], minus the margin for other clients' clocks that are ahead.
fn deadline_for(config: &LeaseConfig, sent: Moment, remaining: Duration) -> Moment {
    deadline(sent, remaining).minus(config.margin)
}

fn no_later_than(end: Option<Moment>, moment: Moment) -> Moment {
    end.map_or(moment, |end| end.min(moment))
}

/// The settings of one acquisition's lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseConfig {
    pub ttl: Ttl,
    pub renew: Renew,
    pub max_hold: Option<Duration>,
    /// How much earlier than on the server the lease ends for its holder.
    pub margin: Duration,
    /// The kind of lock that the lease belongs to.
    pub kind: Kind,
}

impl LeaseConfig {
    fn interval(&self) -> Option<Duration> {
        match self.renew {
            Renew::Auto => Some(self.ttl.as_duration() / 3),
            Renew::Every(interval) => Some(interval),
            Renew::Never => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// The last reply confirmed the lease.
    Valid,
    /// A renewal got no reply. The lease is valid until its deadline, and is renewed again.
    Unconfirmed,
    Lost,
    Released,
}

/// A lease: valid, unconfirmed, lost or released.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    config: LeaseConfig,
    phase: Phase,
    /// When the command was sent that confirmed the lease last.
    sent: Moment,
    /// `None` when the lease does not end by itself.
    deadline: Option<Moment>,
    /// The end of the longest hold. No renewal goes beyond it.
    ends_at: Option<Moment>,
    renew_at: Option<Moment>,
}

/// The ends of a lease that another one continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseEnds {
    /// The end of the lease, if nothing confirms it before.
    pub deadline: Option<Moment>,
    /// The end of the longest hold.
    pub(crate) longest_hold: Option<Moment>,
}

impl LeaseEnds {
    /// Returns the settings of the lease that continues, and that a command sent at `sent` confirms.
    pub(crate) fn continued(&self, config: LeaseConfig, sent: Moment) -> LeaseConfig {
        LeaseConfig {
            max_hold: self.longest_hold.map(|end| end.since(sent)),
            ..config
        }
    }
}

/// The next action for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseAction {
    /// Renew it, with a reply before this moment.
    Renew { before: Moment },
    /// Do nothing until this moment.
    WaitUntil(Moment),
    /// Do nothing more: the lease is lost, released or endless.
    Done,
}

impl LeaseAction {
    /// Returns the time limit of a renewal that is sent now; `None` if no renewal is due.
    pub fn renewal_limit(self, now: Moment, command_timeout: Duration) -> Option<Duration> {
        match self {
            Self::Renew { before } => Some(command_timeout.min(before.since(now))),
            Self::WaitUntil(_) | Self::Done => None,
        }
    }
}

impl Lease {
    /// A lease that the reply to a command sent at `sent` confirms.
    pub fn confirmed(config: LeaseConfig, sent: Moment, remaining: Duration) -> Self {
        let deadline = deadline_for(&config, sent, remaining);
        Self::until(config, sent, remaining, deadline)
    }

    /// A lease that a handover gave at about `start`, valid until `deadline`. The first renewal
    /// extends the handover lease to the ttl, whatever `renew` says.
    pub(crate) fn handed_over(
        config: LeaseConfig,
        start: Moment,
        lease: Duration,
        deadline: Moment,
    ) -> Self {
        Self::until(config, start, lease, deadline)
    }

    fn until(config: LeaseConfig, start: Moment, lease: Duration, deadline: Moment) -> Self {
        let interval = if lease < config.ttl.as_duration() {
            Some(lease / 3)
        } else {
            config.interval()
        };
        let ends_at = config.max_hold.map(|longest| start.plus(longest));
        Self {
            config,
            phase: Phase::Valid,
            sent: start,
            deadline: Some(no_later_than(ends_at, deadline)),
            ends_at,
            renew_at: interval.map(|interval| start.plus(interval)),
        }
    }

    /// A lease that lasts until the release, or until the end of the longest hold. The store keeps
    /// the lock without renewals.
    pub fn endless(config: LeaseConfig, now: Moment) -> Self {
        let ends_at = config.max_hold.map(|longest| now.plus(longest));
        Self {
            config,
            phase: Phase::Valid,
            sent: now,
            deadline: ends_at,
            ends_at,
            renew_at: None,
        }
    }

    /// Makes an endless lease one that ends at its ttl unless a renewal is confirmed, as with a server. Returns false for
    /// a lease that is over, or that is not renewed.
    pub fn begin_renewals(&mut self, now: Moment) -> bool {
        let Some(interval) = self.config.interval() else {
            return false;
        };
        if !self.is_valid(now) {
            return false;
        }
        if self.renew_at.is_none() {
            let end = deadline_for(&self.config, now, self.renewed_ttl(now));
            self.sent = now;
            self.deadline = Some(no_later_than(self.ends_at, end));
            self.renew_at = Some(now.plus(interval));
        }
        true
    }

    /// Undoes [`begin_renewals`](Self::begin_renewals). Returns false for a lease that is over, or that is not renewed.
    pub fn end_renewals(&mut self, now: Moment) -> bool {
        if self.renew_at.is_none() || !self.is_valid(now) {
            return false;
        }
        self.phase = Phase::Valid;
        self.deadline = self.ends_at;
        self.renew_at = None;
        true
    }

    /// Returns whether a renewal that is confirmed at `now` comes late: after more than half of the lease,
    /// or after its interval and a sixth of the lease.
    pub fn is_late(&self, now: Moment) -> bool {
        let Some(deadline) = self.deadline else {
            return false;
        };
        let lease = deadline.since(self.sent);
        let interval = self.config.interval().unwrap_or_default();
        let allowed = (lease / 2).max(interval.saturating_add(lease / 6));
        self.is_valid(now) && now > self.sent.plus(allowed)
    }

    /// Returns from when on the lease is at risk, unless a renewal is confirmed before: less than half of the lease is
    /// left then, and its renewal has failed, or has been due for a sixth of the lease. Without that sixth, a renewal
    /// with an interval of half of the ttl would be a risk each time until its reply comes.
    ///
    /// Returns `None` for a lease that no renewal could extend: it is never renewed, endless, over, or confirmed until
    /// the end of its longest hold.
    pub fn at_risk_from(&self) -> Option<Moment> {
        let (due, deadline) = (self.renew_at?, self.deadline?);
        let lease = deadline.since(self.sent);
        let half = self.sent.plus(lease / 2);
        let from = match self.phase {
            Phase::Valid => half.max(due.plus(lease / 6)),
            Phase::Unconfirmed => half,
            Phase::Lost | Phase::Released => return None,
        };
        (self.own_end() == LossReason::Expired).then_some(from)
    }

    /// Returns whether the lease is at risk: see [`at_risk_from`](Self::at_risk_from). A lease that is over is not.
    pub fn is_at_risk(&self, now: Moment) -> bool {
        self.is_valid(now) && self.at_risk_from().is_some_and(|from| from <= now)
    }

    pub fn lease_config(&self) -> LeaseConfig {
        self.config
    }

    /// Returns the ends that a lease which continues this one has to keep.
    pub fn ends(&self) -> LeaseEnds {
        LeaseEnds {
            deadline: self.deadline,
            longest_hold: self.ends_at,
        }
    }

    /// The ttl of the next renewal: at most the rest of the longest hold.
    pub fn renewed_ttl(&self, now: Moment) -> Duration {
        let ttl = self.config.ttl.as_duration();
        self.ends_at
            .map_or(ttl, |ends_at| ttl.min(ends_at.since(now).max(MIN_RENEWED)))
    }

    /// Returns when the command was sent that confirmed the lease last.
    pub fn confirmed_at(&self) -> Moment {
        self.sent
    }

    /// Returns why the lease ends without a reply of the server: because of the longest hold, or
    /// because no renewal was confirmed. Near the end of the longest hold, renewals are only for the
    /// rest of it.
    pub fn own_end(&self) -> LossReason {
        let whole = self.sent.plus(self.config.ttl.as_duration());
        match self.ends_at {
            Some(end) if end <= whole || self.deadline == Some(end) => LossReason::MaxHold,
            _ => LossReason::Expired,
        }
    }

    pub fn deadline(&self) -> Option<Moment> {
        self.deadline
    }

    /// Whether the lock is certainly held at `now`.
    pub fn is_valid(&self, now: Moment) -> bool {
        matches!(self.phase, Phase::Valid | Phase::Unconfirmed)
            && self.deadline.is_none_or(|deadline| now < deadline)
    }

    /// Whether the holder has to stop: the server refused a renewal, or the lease ended.
    pub fn is_lost(&self, now: Moment) -> bool {
        self.phase != Phase::Released && !self.is_valid(now)
    }

    pub fn is_released(&self) -> bool {
        self.phase == Phase::Released
    }

    /// How long the lock is certainly held from `now` on.
    pub fn remaining(&self, now: Moment) -> Duration {
        match (self.is_valid(now), self.deadline) {
            (false, _) => Duration::ZERO,
            (true, None) => self.config.ttl.as_duration(),
            (true, Some(deadline)) => deadline.since(now),
        }
    }

    /// Returns the next action. A lease whose deadline has passed becomes lost.
    pub fn next_action(&mut self, now: Moment) -> LeaseAction {
        if matches!(self.phase, Phase::Lost | Phase::Released) {
            return LeaseAction::Done;
        }
        let Some(deadline) = self.deadline else {
            return LeaseAction::Done;
        };
        if now >= deadline {
            self.phase = Phase::Lost;
            return LeaseAction::Done;
        }
        match self.renew_at {
            Some(due) if due <= now => LeaseAction::Renew { before: deadline },
            Some(due) => LeaseAction::WaitUntil(due.min(deadline)),
            None => LeaseAction::WaitUntil(deadline),
        }
    }

    /// When to call [`Self::next_action`] next, without a change of the state.
    pub fn next_deadline(&self) -> Option<Moment> {
        match (self.phase, self.renew_at, self.deadline) {
            (Phase::Lost | Phase::Released, _, _) => None,
            (_, Some(renew_at), Some(deadline)) => Some(renew_at.min(deadline)),
            (_, _, deadline) => deadline,
        }
    }

    /// Records a renewal that was sent at `sent` and confirmed. It has no effect on a lease that has
    /// ended, because the holder has already acted on the loss.
    ///
    /// The youngest confirmation counts, also when it confirms less than an earlier one: the server
    /// may have shortened the lease to the rest of the longest hold.
    pub fn renewed(&mut self, sent: Moment, remaining: Duration, now: Moment) {
        if !self.is_valid(now) {
            return;
        }
        self.phase = Phase::Valid;
        if sent < self.sent {
            return;
        }
        self.sent = sent;
        let confirmed = no_later_than(self.ends_at, deadline_for(&self.config, sent, remaining));
        self.deadline = self.deadline.map(|_| confirmed);
        self.renew_at = self.config.interval().map(|interval| sent.plus(interval));
    }

    /// Makes the next renewal due now. Returns whether the lease is renewed at all.
    pub fn renew_soon(&mut self, now: Moment) -> bool {
        match &mut self.renew_at {
            Some(renew_at) if self.phase != Phase::Released && self.phase != Phase::Lost => {
                *renew_at = now.min(*renew_at);
                true
            }
            _ => false,
        }
    }

    /// Records a renewal that got no reply, or a reply that says nothing about the lock.
    pub fn unanswered(&mut self, now: Moment) {
        if matches!(self.phase, Phase::Valid | Phase::Unconfirmed) {
            self.phase = Phase::Unconfirmed;
            let pause = (self.remaining(now) / 10).clamp(*RETRY.start(), *RETRY.end());
            self.renew_at = Some(now.plus(pause));
        }
    }

    /// Records that the server refused a renewal: another owner has the lock, or the key is free.
    pub fn refused(&mut self) {
        // The release may have overtaken a renewal; then the server refused it because of the release.
        if self.phase != Phase::Released {
            self.phase = Phase::Lost;
        }
    }

    /// Records the release. Returns false when the lease was released before.
    pub fn release(&mut self) -> bool {
        std::mem::replace(&mut self.phase, Phase::Released) != Phase::Released
    }
}

#[cfg(test)]
mod tests;
