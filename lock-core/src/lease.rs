//! What to do with a lease at a moment: a pure state machine of events and time.
//!
//! Validity is counted from *before* the command that confirmed it was sent, since the server
//! may have begun to count at any time after that, and ends earlier than the server's by a
//! margin for clocks that do not run alike (S. Sanfilippo's Redlock has the same margin).

use std::time::Duration;

use crate::clock::{Moment, ServerMs};
use crate::options::Renew;
use crate::ttl::Ttl;

/// The rate by which two clocks may differ, as a divisor: one percent. Quartz is a hundred
/// times better; a virtual machine's clock that is slewed may not be.
const DRIFT_DIVISOR: u32 = 100;
/// Expiry on the server is in whole milliseconds, and so may be off by one at each end.
const ROUNDING: Duration = Duration::from_millis(2);
/// What a hand-over gives: a frozen waiter costs the others this much and not a whole ttl.
pub(crate) const CLAIM: Duration = Duration::from_secs(2);
/// PEXPIRE deletes at zero.
const MIN_RENEWED: Duration = Duration::from_millis(1);
/// An anchor older than this says too little about the server's clock now.
const ANCHOR_LIFE: Duration = Duration::from_secs(60);

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
fn deadline_for(terms: &Terms, sent: Moment, remaining: Duration) -> Moment {
    deadline(sent, remaining).minus(terms.margin)
}

fn no_later_than(end: Option<Moment>, moment: Moment) -> Moment {
    end.map_or(moment, |end| end.min(moment))
}

/// The life of a server that does not tell which it is.
pub(crate) const UNKNOWN_LIFE: u64 = 0;

/// Where the server's clock was, seen from here: the youngest reply that told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Anchor {
    /// Before the command was sent.
    pub(crate) sent: Moment,
    pub(crate) server_us: u64,
    /// Which life of which server.
    pub(crate) incarnation: u64,
}

impl Anchor {
    /// The latest that the server's clock can show now, if it does not jump.
    pub(crate) fn server_ms_at(&self, now: Moment) -> ServerMs {
        let elapsed = u64::try_from(now.since(self.sent).as_millis()).unwrap_or(u64::MAX);
        ServerMs::from_micros(self.server_us).plus(elapsed).plus(1)
    }
}

/// Until when a lock that was handed over by a push is valid; `None` when that cannot be said
/// well enough, and a renewal has to confirm it first.
pub(crate) fn granted_until(
    anchor: Option<Anchor>,
    incarnation: u64,
    pushed_us: u64,
    lease: Duration,
    received: Moment,
) -> Option<Moment> {
    let known = incarnation != UNKNOWN_LIFE;
    let anchor = anchor.filter(|anchor| known && anchor.incarnation == incarnation)?;
    let age = received.since(anchor.sent);
    if age > ANCHOR_LIFE {
        return None;
    }
    let offset = i64::try_from(i128::from(pushed_us) - i128::from(anchor.server_us)).ok()?;
    let start = anchor.sent.shifted_us(offset);
    // The push cannot have been sent after it was received: a clock jumped.
    if start > received {
        return None;
    }
    let deadline = start
        .plus(lease)
        .minus(age.saturating_add(lease) / DRIFT_DIVISOR)
        .minus(ROUNDING);
    (deadline.since(received) >= lease / 2).then_some(deadline)
}

/// What a holder asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Terms {
    pub(crate) ttl: Ttl,
    pub(crate) renew: Renew,
    pub(crate) max_hold: Option<Duration>,
    /// How much earlier than on the server the lease ends for its holder.
    pub(crate) margin: Duration,
}

impl Terms {
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
    Unknown,
    Lost,
    Released,
}

/// A lease: valid, unknown, lost or released.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lease {
    terms: Terms,
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
pub(crate) enum Wish {
    /// Be renewed, with an answer before this.
    Renew { before: Moment },
    /// Be looked at again then.
    Look(Moment),
    /// Nothing more: lost or released.
    Nothing,
}

impl Lease {
    /// Confirmed by a reply to a command that was sent at `sent`.
    pub(crate) fn confirmed(terms: Terms, sent: Moment, remaining: Duration) -> Self {
        let deadline = deadline_for(&terms, sent, remaining);
        Self::until(terms, sent, remaining, deadline)
    }

    /// Handed over at about `start`, valid until `deadline`. The first renewal extends the
    /// claim to the ttl, whatever `renew` says.
    pub(crate) fn handed_over(
        terms: Terms,
        start: Moment,
        lease: Duration,
        deadline: Moment,
    ) -> Self {
        Self::until(terms, start, lease, deadline)
    }

    fn until(terms: Terms, start: Moment, lease: Duration, deadline: Moment) -> Self {
        let interval = if lease < terms.ttl.as_duration() {
            Some(lease / 3)
        } else {
            terms.interval()
        };
        let ends_at = terms.max_hold.map(|longest| start.plus(longest));
        Self {
            terms,
            phase: Phase::Valid,
            sent: start,
            deadline: Some(no_later_than(ends_at, deadline)),
            ends_at,
            renew_at: interval.map(|interval| start.plus(interval)),
        }
    }

    /// Held until it is released, or for the longest hold: the backend keeps it alive by
    /// itself.
    pub(crate) fn endless(terms: Terms, now: Moment) -> Self {
        let ends_at = terms.max_hold.map(|longest| now.plus(longest));
        Self {
            terms,
            phase: Phase::Valid,
            sent: now,
            deadline: ends_at,
            ends_at,
            renew_at: None,
        }
    }

    pub(crate) fn terms(&self) -> Terms {
        self.terms
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
        matches!(self.phase, Phase::Valid | Phase::Unknown)
            && self.deadline.is_none_or(|deadline| now < deadline)
    }

    /// Whether the holder has to stop: it was told so, or its time is over.
    pub(crate) fn is_lost(&self, now: Moment) -> bool {
        self.phase != Phase::Released && !self.is_valid(now)
    }

    pub(crate) fn is_released(&self) -> bool {
        self.phase == Phase::Released
    }

    /// How long it is certainly held from `now` on.
    pub(crate) fn remaining(&self, now: Moment) -> Duration {
        match (self.is_valid(now), self.deadline) {
            (false, _) => Duration::ZERO,
            (true, None) => self.terms.ttl.as_duration(),
            (true, Some(deadline)) => deadline.since(now),
        }
    }

    /// Time has passed: what now?
    pub(crate) fn wish(&mut self, now: Moment) -> Wish {
        if matches!(self.phase, Phase::Lost | Phase::Released) {
            return Wish::Nothing;
        }
        let Some(deadline) = self.deadline else {
            return Wish::Nothing;
        };
        if now >= deadline {
            self.phase = Phase::Lost;
            return Wish::Nothing;
        }
        match self.renew_at {
            Some(due) if due <= now => Wish::Renew { before: deadline },
            Some(due) => Wish::Look(due.min(deadline)),
            None => Wish::Look(deadline),
        }
    }

    /// When to ask [`Self::wish`] next, without changing anything.
    pub(crate) fn due(&self) -> Option<Moment> {
        match (self.phase, self.renew_at, self.deadline) {
            (Phase::Lost | Phase::Released, _, _) => None,
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
        let confirmed = no_later_than(self.ends_at, deadline_for(&self.terms, sent, remaining));
        self.deadline = self.deadline.map(|_| confirmed);
        self.renew_at = self.terms.interval().map(|interval| sent.plus(interval));
    }

    /// A renewal got no answer, or one that says nothing about the lock.
    pub(crate) fn unanswered(&mut self, again_at: Moment) {
        if matches!(self.phase, Phase::Valid | Phase::Unknown) {
            self.phase = Phase::Unknown;
            self.renew_at = Some(again_at);
        }
    }

    /// The server said that it is somebody else's, or nobody's.
    pub(crate) fn refused(&mut self) {
        // A renewal that crossed the release was refused because of the release.
        if self.phase != Phase::Released {
            self.phase = Phase::Lost;
        }
    }

    /// The holder gives it up. False when that was done before.
    pub(crate) fn release(&mut self) -> bool {
        std::mem::replace(&mut self.phase, Phase::Released) != Phase::Released
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(ttl_ms: u64, renew: Renew) -> Terms {
        Terms {
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
        Lease::confirmed(terms(30_000, Renew::Auto), at(1_000), secs(30))
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
        assert_eq!(lease.wish(at(2_000)), Wish::Look(at(11_000)));
        assert_eq!(lease.wish(at(11_000)), Wish::Renew { before: at(30_698) });
        lease.renewed(at(11_000), secs(30), at(11_005));
        assert_eq!(lease.deadline(), Some(at(40_698)));
        assert_eq!(lease.wish(at(11_005)), Wish::Look(at(21_000)));
    }

    #[test]
    fn never_is_never_and_every_is_every() {
        let mut never = Lease::confirmed(terms(1_000, Renew::Never), at(0), secs(1));
        assert_eq!(never.wish(at(1)), Wish::Look(at(988)));
        let every = Renew::Every(Duration::from_millis(200));
        let mut lease = Lease::confirmed(terms(1_000, every), at(0), secs(1));
        assert_eq!(lease.wish(at(1)), Wish::Look(at(200)));
    }

    #[test]
    fn a_claim_is_extended_to_the_ttl_whatever_renew_says() {
        let mut lease = Lease::handed_over(terms(30_000, Renew::Never), at(0), CLAIM, at(1_978));
        assert_eq!(lease.wish(at(667)), Wish::Renew { before: at(1_978) });
        lease.renewed(at(667), secs(30), at(668));
        assert_eq!(lease.wish(at(668)), Wish::Look(at(667 + 29_698)));
    }

    #[test]
    fn a_renewal_without_an_answer_is_asked_again_until_the_deadline() {
        let mut lease = fresh();
        lease.unanswered(at(11_100));
        assert!(lease.is_valid(at(11_050)));
        assert_eq!(lease.wish(at(11_050)), Wish::Look(at(11_100)));
        assert_eq!(lease.wish(at(11_100)), Wish::Renew { before: at(30_698) });
        lease.unanswered(at(99_000));
        assert_eq!(lease.wish(at(11_200)), Wish::Look(at(30_698)));
        assert_eq!(lease.wish(at(30_698)), Wish::Nothing);
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
        assert_eq!(lease.wish(at(30_698)), Wish::Nothing);
    }

    #[test]
    fn a_refusal_after_the_release_is_not_loss() {
        let mut lease = fresh();
        assert!(lease.release());
        lease.refused();
        assert!(!lease.is_lost(at(2_000)));
        assert!(lease.is_released());
        assert!(!lease.release());
        assert_eq!(lease.wish(at(99_999)), Wish::Nothing);
        assert_eq!(lease.due(), None);
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
            let mut lease = Lease::confirmed(terms(1_000, Renew::Auto), at(5), longest);
            lease.renewed(at(6), longest, at(7));
            assert!(lease.is_valid(at(1_000_000_000)), "{longest:?}");
        }
    }

    #[test]
    fn a_younger_confirmation_counts_although_it_confirms_less() {
        let longest = Some(Duration::from_secs(31));
        let terms = Terms {
            max_hold: longest,
            ..terms(30_000, Renew::Auto)
        };
        let mut lease = Lease::confirmed(terms, at(0), secs(30));
        lease.renewed(at(10_000), secs(21), at(10_005));
        assert_eq!(lease.deadline(), Some(at(31_000 - 210 - 2)));
        // Less than the deadline that is known, by the margin of a clock that runs fast.
        lease.renewed(at(20_000), secs(10), at(20_005));
        assert_eq!(lease.deadline(), Some(at(30_000 - 100 - 2)));
    }

    #[test]
    fn an_endless_lease_ends_by_release_or_refusal_only() {
        let mut lease = Lease::endless(terms(1_000, Renew::Auto), at(0));
        assert!(lease.is_valid(at(u64::MAX / 1_000_000)));
        assert_eq!(lease.wish(at(1)), Wish::Nothing);
        lease.refused();
        assert!(lease.is_lost(at(1)));
    }

    #[test]
    fn no_renewal_goes_beyond_the_longest_hold() {
        let longest = Some(Duration::from_millis(2_500));
        let terms = Terms {
            max_hold: longest,
            ..terms(1_000, Renew::Auto)
        };
        let mut lease = Lease::confirmed(terms, at(0), secs(1));
        lease.renewed(at(900), secs(1), at(901));
        assert_eq!(lease.deadline(), Some(at(1_888)));
        lease.renewed(at(1_800), secs(1), at(1_801));
        assert_eq!(lease.deadline(), Some(at(2_500)));
        let left = lease.left_to_hold(at(1_800));
        assert_eq!(terms.renewed_ttl(left), Duration::from_millis(700));
        assert_eq!(terms.renewed_ttl(Some(Duration::ZERO)), MIN_RENEWED);
        assert!(lease.is_lost(at(2_500)));

        let endless = Lease::endless(terms, at(100));
        assert!(endless.is_valid(at(2_599)) && endless.is_lost(at(2_600)));
    }

    fn anchor() -> Anchor {
        Anchor {
            sent: at(5_000),
            server_us: 1_000_000_000,
            incarnation: 1,
        }
    }

    #[test]
    fn a_grant_is_counted_from_the_server_s_time_of_the_push() {
        // Pushed 1 s after the anchor, received 3 ms later.
        let until = granted_until(Some(anchor()), 1, 1_001_000_000, secs(2), at(6_003)).unwrap();
        let margin = (Duration::from_millis(1_003) + secs(2)) / 100 + ROUNDING;
        assert_eq!(until, at(6_000).plus(secs(2)).minus(margin));
    }

    #[test]
    fn a_grant_that_cannot_be_dated_has_to_be_confirmed() {
        let lease = secs(2);
        let pushed = 1_001_000_000;
        assert_eq!(granted_until(None, 1, pushed, lease, at(6_003)), None);
        assert_eq!(
            granted_until(Some(anchor()), 2, pushed, lease, at(6_003)),
            None
        );
        let nameless = Anchor {
            incarnation: UNKNOWN_LIFE,
            ..anchor()
        };
        let until = granted_until(Some(nameless), UNKNOWN_LIFE, pushed, lease, at(6_003));
        assert_eq!(until, None);
        // Older than a minute.
        assert_eq!(
            granted_until(Some(anchor()), 1, 1_060_000_000, lease, at(65_001)),
            None
        );
        // Pushed after it was received: a clock jumped.
        assert_eq!(
            granted_until(Some(anchor()), 1, pushed, lease, at(5_999)),
            None
        );
        // Less than half is left.
        assert_eq!(
            granted_until(Some(anchor()), 1, pushed, lease, at(7_100)),
            None
        );
    }

    #[test]
    fn the_anchor_gives_the_latest_time_that_the_server_can_have() {
        assert_eq!(anchor().server_ms_at(at(5_250)), ServerMs::new(1_000_251));
    }
}
