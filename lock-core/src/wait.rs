//! When a waiter looks by itself: pushes tell it in the ordinary case, looks in every other.

use std::time::Duration;

use crate::clock::Moment;
use crate::retry::{Backoff, Jitter};
use crate::ttl::Ttl;
use crate::wire::Mode;

/// A key still exists at PTTL 0, and its expiry is in whole milliseconds.
const AFTER_EXPIRY: Duration = Duration::from_millis(2);
/// Waiters look at the holder's expiry one after another, so that the first finds it free.
const STEP_BY_RANK: Duration = Duration::from_millis(10);
/// Those further behind leave that look to the first ones.
const LOOK_AT_EXPIRY: u64 = 20;
/// However quiet it is: this is what a lost push can cost the first in the queue.
const CAP: Duration = Duration::from_secs(1);
/// The cap grows with the rank, so that a thousand waiters ask seventy times a second.
const CAP_BY_RANK: Duration = Duration::from_millis(100);
/// A key without expiry is about to get one, or is no lock: four looks tell.
const NO_EXPIRY_POLL: Duration = Duration::from_millis(50);
/// Other clients write SETNX and EXPIRE as two commands; this long the second may take.
pub(crate) const NO_EXPIRY_GRACE: Duration = Duration::from_millis(200);
/// Without pushes a waiter asks this often, or three times within the lease it would be given.
const POLL: Duration = Duration::from_millis(500);
/// The first pause of one who polls in a dialect, as a part of the longest: a short section is
/// over by then.
const FIRST_PAUSE: u32 = 8;
/// Those who poll in a dialect look at the holder's expiry one after another, by chance.
const SPREAD: Duration = Duration::from_millis(20);
/// How long an entry stays without a word from its waiter.
const LONGEST_SILENCE: Duration = Duration::from_secs(600);

/// How often a waiter without pushes asks.
pub(crate) fn poll_interval(ttl: Ttl) -> Duration {
    POLL.min(ttl.as_duration() / 3)
}

/// The lease that a hand-over to this waiter gives: short for one who is told at once, three
/// polls for one who asks.
pub(crate) fn claim(mode: Mode, ttl: Ttl) -> Duration {
    match mode {
        Mode::Subscribed => crate::lease::CLAIM.min(ttl.as_duration()),
        Mode::Polling => poll_interval(ttl) * 3,
    }
}

/// Until when the entry of a waiter stands, counted from now: its wait, in steps of at most
/// ten minutes. It is written anew when less than half of a step is left.
pub(crate) fn stay(left: Duration) -> Duration {
    left.min(LONGEST_SILENCE)
}

/// Whether an entry that stands until `gone_at` has to be extended for a wait until `deadline`.
pub(crate) fn wants_extension(now: Moment, gone_at: Moment, deadline: Moment) -> bool {
    gone_at < deadline && gone_at.since(now) < LONGEST_SILENCE / 2
}

/// What is known of the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ahead {
    /// A lock of ours, which ends by itself then.
    Native { ends: Moment },
    /// Another client's, or nobody's while other clients go first.
    Foreign { ends: Moment },
    /// Anybody, in a dialect where nobody tells those who wait.
    Polled { ends: Moment },
    /// A key without expiry: either about to get one, or not a lock.
    NoExpiry,
}

/// When to look next.
#[derive(Clone, Debug)]
pub(crate) struct Looks {
    rank: u64,
    ahead: Ahead,
    looked: Moment,
    poll: Option<Duration>,
    jitter: Jitter,
    /// Between two looks where those who release tell nobody.
    longest_pause: Duration,
    /// The pauses of one whom nobody ever tells.
    pauses: Backoff,
    next: Moment,
}

impl Looks {
    /// Where those who release tell nobody, somebody looks at least every `longest_pause`: the
    /// first in the queue behind another client's lock, and all in other dialects.
    pub(crate) fn new(now: Moment, longest_pause: Duration, mut jitter: Jitter) -> Self {
        let pauses = jitter.fork();
        Self {
            pauses: Backoff::between(longest_pause / FIRST_PAUSE, longest_pause, pauses),
            longest_pause,
            rank: 0,
            ahead: Ahead::Native { ends: now },
            looked: now,
            poll: None,
            jitter,
            next: now,
        }
    }

    /// The answer to a look. `poll` is set for those who are not pushed to.
    pub(crate) fn seen(&mut self, now: Moment, rank: u64, ahead: Ahead, poll: Option<Duration>) {
        self.looked = now;
        self.rank = rank;
        self.ahead = ahead;
        self.poll = poll;
        self.plan();
    }

    /// A push said that we are the first now, and when the holder's lease ends.
    pub(crate) fn is_head(&mut self, holder_ends: Moment) {
        self.rank = 0;
        self.ahead = Ahead::Native { ends: holder_ends };
        self.plan();
    }

    /// Something happened that only asking can tell.
    pub(crate) fn at_once(&mut self, now: Moment) {
        self.next = now;
    }

    pub(crate) fn next(&self) -> Moment {
        self.next
    }

    fn plan(&mut self) {
        let rank = u32::try_from(self.rank).unwrap_or(u32::MAX);
        let mut next = self.looked.plus(
            self.jitter
                .shorten(CAP.max(CAP_BY_RANK.saturating_mul(rank))),
        );
        if let Some(poll) = self.poll {
            next = next.min(self.looked.plus(self.jitter.shorten(poll)));
        }
        let at_expiry = |ends: Moment| ends.plus(AFTER_EXPIRY).plus(STEP_BY_RANK * rank);
        match self.ahead {
            Ahead::Native { ends } if self.rank < LOOK_AT_EXPIRY => {
                next = next.min(at_expiry(ends));
            }
            Ahead::Foreign { ends } if self.rank == 0 => {
                let poll = self.looked.plus(self.jitter.shorten(self.longest_pause));
                next = next.min(poll).min(at_expiry(ends));
            }
            Ahead::Polled { ends } => {
                let spread = SPREAD.saturating_sub(self.jitter.anywhere_in(SPREAD));
                next = self.looked.plus(self.pauses.pause());
                next = next.min(ends.plus(AFTER_EXPIRY).plus(spread));
            }
            Ahead::NoExpiry => next = next.min(self.looked.plus(NO_EXPIRY_POLL)),
            Ahead::Native { .. } | Ahead::Foreign { .. } => {}
        }
        // An expiry that is already past must not become a hot loop.
        self.next = next.max(self.looked.plus(AFTER_EXPIRY));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_millis(ms)
    }

    const LONGEST_PAUSE: Duration = Duration::from_millis(100);

    fn looks() -> Looks {
        Looks::new(at(0), LONGEST_PAUSE, Jitter::seeded(3))
    }

    fn native(ms: u64) -> Ahead {
        Ahead::Native { ends: at(ms) }
    }

    #[test]
    fn the_first_looks_when_the_holder_s_lease_ends() {
        let mut looks = looks();
        looks.seen(at(100), 0, native(400), None);
        assert_eq!(looks.next(), at(402));
        looks.seen(at(100), 3, native(400), None);
        assert_eq!(looks.next(), at(432));
    }

    #[test]
    fn nobody_is_silent_for_longer_than_the_cap() {
        let mut looks = looks();
        looks.seen(at(100), 0, native(60_000), None);
        assert!(looks.next() > at(850) && looks.next() <= at(1_100));
        looks.seen(at(100), 50, native(200), None);
        assert!(looks.next() > at(3_850) && looks.next() <= at(5_100));
        looks.seen(at(100), u64::MAX, native(200), None);
        assert!(looks.next() > at(1_000_000));
    }

    #[test]
    fn those_far_behind_leave_the_look_at_expiry_to_the_first() {
        let mut looks = looks();
        looks.seen(at(0), 19, native(100), None);
        assert_eq!(looks.next(), at(292));
        looks.seen(at(0), 20, native(100), None);
        assert!(looks.next() > at(1_400));
    }

    #[test]
    fn the_first_behind_a_foreign_holder_polls() {
        let mut looks = looks();
        looks.seen(at(0), 0, Ahead::Foreign { ends: at(10_000) }, None);
        assert!(looks.next() <= at(100) && looks.next() > at(74));
        looks.seen(at(0), 1, Ahead::Foreign { ends: at(10_000) }, None);
        assert!(looks.next() > at(700));
    }

    /// When each of so many looks comes, behind a holder who does not end.
    fn polls(mut looks: Looks, count: usize) -> Vec<Moment> {
        let mut now = at(0);
        let mut moments = Vec::new();
        for _ in 0..count {
            looks.seen(now, 0, Ahead::Polled { ends: at(600_000) }, None);
            now = looks.next();
            moments.push(now);
        }
        moments
    }

    #[test]
    fn whom_nobody_tells_backs_off_to_the_longest_pause() {
        let moments = polls(looks(), 40);
        assert!(moments[0] > at(9) && moments[0] <= at(13), "{moments:?}");
        let pauses = moments.windows(2).map(|pair| pair[1].since(pair[0]));
        let settled: Vec<_> = pauses.skip(4).collect();
        let range = LONGEST_PAUSE * 3 / 4..=LONGEST_PAUSE;
        assert!(
            settled.iter().all(|pause| range.contains(pause)),
            "{settled:?}"
        );
    }

    #[test]
    fn two_who_poll_do_not_stay_in_step() {
        let of = |seed| polls(Looks::new(at(0), LONGEST_PAUSE, Jitter::seeded(seed)), 50);
        assert_eq!(of(1), of(1), "a seed tells all");
        let (one, other) = (of(1), of(2));
        let together = one
            .iter()
            .filter(|mine| {
                let near = |theirs: &&Moment| theirs.since(**mine).max(mine.since(**theirs));
                other
                    .iter()
                    .any(|theirs| near(&theirs) < Duration::from_millis(1))
            })
            .count();
        assert!(together < 10, "{together} of 50 within a millisecond");
    }

    #[test]
    fn whoever_polls_looks_soon_after_the_holder_s_end() {
        let mut looks = looks();
        for _ in 0..10 {
            looks.seen(at(0), 0, Ahead::Polled { ends: at(7) }, None);
            assert!(looks.next() >= at(9) && looks.next() <= at(29));
        }
    }

    #[test]
    fn a_key_without_expiry_is_looked_at_soon() {
        let mut looks = looks();
        looks.seen(at(0), 4, Ahead::NoExpiry, None);
        assert_eq!(looks.next(), at(50));
    }

    #[test]
    fn without_pushes_everybody_polls_three_times_within_a_claim() {
        let ttl = Ttl::new(Duration::from_secs(30)).unwrap();
        let mut looks = looks();
        looks.seen(at(0), 12, native(60_000), Some(poll_interval(ttl)));
        assert!(looks.next() <= at(500) && looks.next() > at(375));
        assert_eq!(claim(Mode::Polling, ttl), Duration::from_millis(1_500));
        let short = Ttl::new(Duration::from_millis(150)).unwrap();
        assert_eq!(poll_interval(short), Duration::from_millis(50));
        assert_eq!(claim(Mode::Polling, short), Duration::from_millis(150));
        assert_eq!(claim(Mode::Subscribed, short), Duration::from_millis(150));
        assert_eq!(claim(Mode::Subscribed, ttl), Duration::from_secs(2));
    }

    #[test]
    fn a_push_to_the_head_brings_the_look_forward() {
        let mut looks = looks();
        looks.seen(at(0), 30, native(60_000), None);
        assert!(looks.next() > at(2_000));
        looks.is_head(at(300));
        assert_eq!(looks.next(), at(302));
        looks.at_once(at(7));
        assert_eq!(looks.next(), at(7));
    }

    #[test]
    fn an_expiry_in_the_past_is_no_hot_loop() {
        let mut looks = looks();
        looks.seen(at(500), 0, native(100), None);
        assert_eq!(looks.next(), at(502));
    }

    #[test]
    fn long_waits_are_extended_in_time() {
        let day = Duration::from_secs(86_400);
        assert_eq!(stay(Duration::from_secs(5)), Duration::from_secs(5));
        assert_eq!(stay(day), LONGEST_SILENCE);
        let gone_at = at(600_000);
        assert!(!wants_extension(at(0), gone_at, at(86_400_000)));
        assert!(wants_extension(at(300_001), gone_at, at(86_400_000)));
        assert!(!wants_extension(at(300_001), gone_at, gone_at));
    }
}
