//! What to do with a lease at a moment: a pure state machine of events and time.
//!
//! Validity is counted from *before* the command that confirmed it was sent, since the server
//! may have begun to count at any time after that, and ends earlier than the server's by a
//! margin for clocks that do not run alike (S. Sanfilippo's Redlock has the same margin).

use std::time::Duration;

use crate::protocol::clock::Moment;
use crate::protocol::renew::Renew;
use crate::protocol::ttl::Ttl;

/// The rate by which two clocks may differ, as a divisor: one percent. Quartz is a hundred
/// times better; a virtual machine's clock that is slewed may not be.
pub(super) const DRIFT_DIVISOR: u32 = 100;
/// Expiry on the server is in whole milliseconds, and so may be off by one at each end.
pub(super) const ROUNDING: Duration = Duration::from_millis(2);
/// What a hand-over gives: a frozen waiter costs the others this much and not a whole ttl.
pub(crate) const HANDOVER_LEASE: Duration = Duration::from_secs(2);
/// PEXPIRE deletes at zero.
const MIN_RENEWED: Duration = Duration::from_millis(1);

/// Longer leases are as good as this one. Where sums saturate, a part of a longer one would be
/// more than was added.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// When a lease that a command confirmed is over, for us.
pub(crate) fn deadline(sent: Moment, remaining: Duration) -> Moment {
    let remaining = remaining.min(LONGEST);
    sent.plus(remaining)
        .minus(remaining / DRIFT_DIVISOR)
        .minus(ROUNDING)
}

/// As [`deadline`], for a holder who has to leave room for clocks that are ahead.
fn deadline_for(lease_config: &LeaseConfig, sent: Moment, remaining: Duration) -> Moment {
    deadline(sent, remaining).minus(lease_config.margin)
}

fn no_later_than(end: Option<Moment>, moment: Moment) -> Moment {
    end.map_or(moment, |end| end.min(moment))
}

/// What a holder asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LeaseConfig {
    pub(crate) ttl: Ttl,
    pub(crate) renew: Renew,
    pub(crate) max_hold: Option<Duration>,
    /// How much earlier than on the server the lease ends for its holder.
    pub(crate) margin: Duration,
}

impl LeaseConfig {
    /// The ttl that a renewal asks for: no more than what is left of the longest hold.
    pub(crate) fn renewed_ttl(&self, left: Option<Duration>) -> Duration {
        let ttl = self.ttl.as_duration();
        left.map_or(ttl, |left| ttl.min(left.max(MIN_RENEWED)))
    }

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
    /// The last word of the server was that it is ours.
    Valid,
    /// A renewal got no answer: ours until the deadline, and asked again.
    Unconfirmed,
    Lost,
    ReleaseOutcome,
}

/// A lease: valid, unknown, lost or released.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lease {
    lease_config: LeaseConfig,
    phase: Phase,
    /// When the command was sent that confirmed it last.
    sent: Moment,
    /// `None` when it does not end by itself.
    deadline: Option<Moment>,
    /// No renewal goes beyond this.
    ends_at: Option<Moment>,
    renew_at: Option<Moment>,
}

/// What a lease wants now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseAction {
    /// Be renewed, with an answer before this.
    Renew { before: Moment },
    /// Be looked at again then.
    WaitUntil(Moment),
    /// Nothing more: lost or released.
    Done,
}

impl Lease {
    /// Confirmed by a reply to a command that was sent at `sent`.
    pub(crate) fn confirmed(lease_config: LeaseConfig, sent: Moment, remaining: Duration) -> Self {
        let deadline = deadline_for(&lease_config, sent, remaining);
        Self::until(lease_config, sent, remaining, deadline)
    }

    /// Handed over at about `start`, valid until `deadline`. The first renewal extends the
    /// claim to the ttl, whatever `renew` says.
    pub(crate) fn handed_over(
        lease_config: LeaseConfig,
        start: Moment,
        lease: Duration,
        deadline: Moment,
    ) -> Self {
        Self::until(lease_config, start, lease, deadline)
    }

    fn until(lease_config: LeaseConfig, start: Moment, lease: Duration, deadline: Moment) -> Self {
        let interval = if lease < lease_config.ttl.as_duration() {
            Some(lease / 3)
        } else {
            lease_config.interval()
        };
        let ends_at = lease_config.max_hold.map(|longest| start.plus(longest));
        Self {
            lease_config,
            phase: Phase::Valid,
            sent: start,
            deadline: Some(no_later_than(ends_at, deadline)),
            ends_at,
            renew_at: interval.map(|interval| start.plus(interval)),
        }
    }

    /// Held until it is released, or for the longest hold: the backend keeps it alive by
    /// itself.
    pub(crate) fn endless(lease_config: LeaseConfig, now: Moment) -> Self {
        let ends_at = lease_config.max_hold.map(|longest| now.plus(longest));
        Self {
            lease_config,
            phase: Phase::Valid,
            sent: now,
            deadline: ends_at,
            ends_at,
            renew_at: None,
        }
    }

    pub(crate) fn lease_config(&self) -> LeaseConfig {
        self.lease_config
    }

    /// What is left of the longest hold.
    pub(crate) fn left_to_hold(&self, now: Moment) -> Option<Duration> {
        self.ends_at.map(|ends_at| ends_at.since(now))
    }

    pub(crate) fn deadline(&self) -> Option<Moment> {
        self.deadline
    }

    /// Whether the lock is certainly held at `now`.
    pub(crate) fn is_valid(&self, now: Moment) -> bool {
        matches!(self.phase, Phase::Valid | Phase::Unconfirmed)
            && self.deadline.is_none_or(|deadline| now < deadline)
    }

    /// Whether the holder has to stop: it was told so, or its time is over.
    pub(crate) fn is_lost(&self, now: Moment) -> bool {
        self.phase != Phase::ReleaseOutcome && !self.is_valid(now)
    }

    pub(crate) fn is_released(&self) -> bool {
        self.phase == Phase::ReleaseOutcome
    }

    /// How long it is certainly held from `now` on.
    pub(crate) fn remaining(&self, now: Moment) -> Duration {
        match (self.is_valid(now), self.deadline) {
            (false, _) => Duration::ZERO,
            (true, None) => self.lease_config.ttl.as_duration(),
            (true, Some(deadline)) => deadline.since(now),
        }
    }

    /// Time has passed: what now?
    pub(crate) fn next_action(&mut self, now: Moment) -> LeaseAction {
        if matches!(self.phase, Phase::Lost | Phase::ReleaseOutcome) {
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

    /// When to ask [`Self::wish`] next, without changing anything.
    pub(crate) fn next_deadline(&self) -> Option<Moment> {
        match (self.phase, self.renew_at, self.deadline) {
            (Phase::Lost | Phase::ReleaseOutcome, _, _) => None,
            (_, Some(renew_at), Some(deadline)) => Some(renew_at.min(deadline)),
            (_, _, deadline) => deadline,
        }
    }

    /// A renewal that was sent at `sent` was confirmed. Too late for a lease that is over:
    /// whoever was told of the loss has acted on it.
    ///
    /// The youngest one counts, also where it confirms less than the one before: the server may
    /// have shortened the lease to what was left of the longest hold.
    pub(crate) fn renewed(&mut self, sent: Moment, remaining: Duration, now: Moment) {
        if !self.is_valid(now) {
            return;
        }
        self.phase = Phase::Valid;
        if sent < self.sent {
            return;
        }
        self.sent = sent;
        let confirmed = no_later_than(
            self.ends_at,
            deadline_for(&self.lease_config, sent, remaining),
        );
        self.deadline = self.deadline.map(|_| confirmed);
        self.renew_at = self
            .lease_config
            .interval()
            .map(|interval| sent.plus(interval));
    }

    /// A renewal got no answer, or one that says nothing about the lock.
    pub(crate) fn unanswered(&mut self, again_at: Moment) {
        if matches!(self.phase, Phase::Valid | Phase::Unconfirmed) {
            self.phase = Phase::Unconfirmed;
            self.renew_at = Some(again_at);
        }
    }

    /// The server said that it is somebody else's, or nobody's.
    pub(crate) fn refused(&mut self) {
        // A renewal that crossed the release was refused because of the release.
        if self.phase != Phase::ReleaseOutcome {
            self.phase = Phase::Lost;
        }
    }

    /// The holder gives it up. False when that was done before.
    pub(crate) fn release(&mut self) -> bool {
        std::mem::replace(&mut self.phase, Phase::ReleaseOutcome) != Phase::ReleaseOutcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease_config(ttl_ms: u64, renew: Renew) -> LeaseConfig {
        LeaseConfig {
            ttl: Ttl::new(Duration::from_millis(ttl_ms)).unwrap(),
            renew,
            max_hold: None,
            margin: Duration::ZERO,
        }
    }

    fn at(ms: u64) -> Moment {
        Moment::from_millis(ms)
    }

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn fresh() -> Lease {
        Lease::confirmed(lease_config(30_000, Renew::Auto), at(1_000), secs(30))
    }

    #[test]
    fn validity_counts_from_the_send_and_keeps_the_margin() {
        let lease = fresh();
        assert_eq!(lease.deadline(), Some(at(1_000 + 30_000 - 300 - 2)));
        assert!(lease.is_valid(at(30_697)));
        assert!(!lease.is_valid(at(30_698)));
        assert!(lease.is_lost(at(30_698)));
        assert_eq!(lease.remaining(at(30_000)), Duration::from_millis(698));
        assert_eq!(lease.remaining(at(40_000)), Duration::ZERO);
    }

    #[test]
    fn auto_renews_after_a_third() {
        let mut lease = fresh();
        assert_eq!(
            lease.next_action(at(2_000)),
            LeaseAction::WaitUntil(at(11_000))
        );
        assert_eq!(
            lease.next_action(at(11_000)),
            LeaseAction::Renew { before: at(30_698) }
        );
        lease.renewed(at(11_000), secs(30), at(11_005));
        assert_eq!(lease.deadline(), Some(at(40_698)));
        assert_eq!(
            lease.next_action(at(11_005)),
            LeaseAction::WaitUntil(at(21_000))
        );
    }

    #[test]
    fn never_is_never_and_every_is_every() {
        let mut never = Lease::confirmed(lease_config(1_000, Renew::Never), at(0), secs(1));
        assert_eq!(never.next_action(at(1)), LeaseAction::WaitUntil(at(988)));
        let every = Renew::Every(Duration::from_millis(200));
        let mut lease = Lease::confirmed(lease_config(1_000, every), at(0), secs(1));
        assert_eq!(lease.next_action(at(1)), LeaseAction::WaitUntil(at(200)));
    }

    #[test]
    fn a_claim_is_extended_to_the_ttl_whatever_renew_says() {
        let mut lease = Lease::handed_over(
            lease_config(30_000, Renew::Never),
            at(0),
            HANDOVER_LEASE,
            at(1_978),
        );
        assert_eq!(
            lease.next_action(at(667)),
            LeaseAction::Renew { before: at(1_978) }
        );
        lease.renewed(at(667), secs(30), at(668));
        assert_eq!(
            lease.next_action(at(668)),
            LeaseAction::WaitUntil(at(667 + 29_698))
        );
    }

    #[test]
    fn a_renewal_without_an_answer_is_asked_again_until_the_deadline() {
        let mut lease = fresh();
        lease.unanswered(at(11_100));
        assert!(lease.is_valid(at(11_050)));
        assert_eq!(
            lease.next_action(at(11_050)),
            LeaseAction::WaitUntil(at(11_100))
        );
        assert_eq!(
            lease.next_action(at(11_100)),
            LeaseAction::Renew { before: at(30_698) }
        );
        lease.unanswered(at(99_000));
        assert_eq!(
            lease.next_action(at(11_200)),
            LeaseAction::WaitUntil(at(30_698))
        );
        assert_eq!(lease.next_action(at(30_698)), LeaseAction::Done);
        assert!(lease.is_lost(at(30_698)));
    }

    #[test]
    fn a_refusal_is_loss_and_loss_is_for_ever() {
        let mut lease = fresh();
        lease.refused();
        assert!(lease.is_lost(at(1_001)));
        lease.renewed(at(1_002), secs(30), at(1_003));
        assert!(lease.is_lost(at(1_003)));
    }

    #[test]
    fn a_confirmation_after_the_deadline_brings_nothing_back() {
        let mut lease = fresh();
        lease.renewed(at(30_690), secs(30), at(30_698));
        assert!(lease.is_lost(at(30_698)));
        assert_eq!(lease.next_action(at(30_698)), LeaseAction::Done);
    }

    #[test]
    fn a_refusal_after_the_release_is_not_loss() {
        let mut lease = fresh();
        assert!(lease.release());
        lease.refused();
        assert!(!lease.is_lost(at(2_000)));
        assert!(lease.is_released());
        assert!(!lease.release());
        assert_eq!(lease.next_action(at(99_999)), LeaseAction::Done);
        assert_eq!(lease.next_deadline(), None);
    }

    #[test]
    fn an_older_confirmation_never_shortens() {
        let mut lease = fresh();
        lease.renewed(at(11_000), secs(30), at(11_005));
        lease.renewed(at(10_000), secs(30), at(11_006));
        assert_eq!(lease.deadline(), Some(at(40_698)));
    }

    #[test]
    fn the_longest_leases_are_valid() {
        for longest in [Duration::MAX, LONGEST, Duration::from_millis(u64::MAX)] {
            let mut lease = Lease::confirmed(lease_config(1_000, Renew::Auto), at(5), longest);
            lease.renewed(at(6), longest, at(7));
            assert!(lease.is_valid(at(1_000_000_000)), "{longest:?}");
        }
    }

    #[test]
    fn a_younger_confirmation_counts_although_it_confirms_less() {
        let longest = Some(Duration::from_secs(31));
        let lease_config = LeaseConfig {
            max_hold: longest,
            ..lease_config(30_000, Renew::Auto)
        };
        let mut lease = Lease::confirmed(lease_config, at(0), secs(30));
        lease.renewed(at(10_000), secs(21), at(10_005));
        assert_eq!(lease.deadline(), Some(at(31_000 - 210 - 2)));
        // Less than the deadline that is known, by the margin of a clock that runs fast.
        lease.renewed(at(20_000), secs(10), at(20_005));
        assert_eq!(lease.deadline(), Some(at(30_000 - 100 - 2)));
    }

    #[test]
    fn an_endless_lease_ends_by_release_or_refusal_only() {
        let mut lease = Lease::endless(lease_config(1_000, Renew::Auto), at(0));
        assert!(lease.is_valid(at(u64::MAX / 1_000_000)));
        assert_eq!(lease.next_action(at(1)), LeaseAction::Done);
        lease.refused();
        assert!(lease.is_lost(at(1)));
    }

    #[test]
    fn no_renewal_goes_beyond_the_longest_hold() {
        let longest = Some(Duration::from_millis(2_500));
        let lease_config = LeaseConfig {
            max_hold: longest,
            ..lease_config(1_000, Renew::Auto)
        };
        let mut lease = Lease::confirmed(lease_config, at(0), secs(1));
        lease.renewed(at(900), secs(1), at(901));
        assert_eq!(lease.deadline(), Some(at(1_888)));
        lease.renewed(at(1_800), secs(1), at(1_801));
        assert_eq!(lease.deadline(), Some(at(2_500)));
        let left = lease.left_to_hold(at(1_800));
        assert_eq!(lease_config.renewed_ttl(left), Duration::from_millis(700));
        assert_eq!(lease_config.renewed_ttl(Some(Duration::ZERO)), MIN_RENEWED);
        assert!(lease.is_lost(at(2_500)));

        let endless = Lease::endless(lease_config, at(100));
        assert!(endless.is_valid(at(2_599)) && endless.is_lost(at(2_600)));
    }
}
