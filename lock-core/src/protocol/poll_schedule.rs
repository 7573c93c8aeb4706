//! When a waiter looks by itself: pushes tell it in the ordinary case, looks in every other.

use std::time::Duration;

use crate::protocol::backoff::{Backoff, Jitter};
use crate::protocol::clock::Moment;
use crate::protocol::ttl::Ttl;
use crate::protocol::wire::Mode;

/// A key still exists at PTTL 0, and its expiry is in whole milliseconds.
const AFTER_EXPIRY: Duration = Duration::from_millis(2);
/// The foremost waiters of several managers look at the holder's expiry one after another, so that
/// the first of the queue finds it free.
const STEP_BY_RANK: Duration = Duration::from_millis(10);
/// Those further behind come within this time after the expiry, at random.
const SPREAD_AT_EXPIRY: Duration = Duration::from_millis(250);
/// However quiet it is: this is what a lost push can cost the first in the queue.
const CAP: Duration = Duration::from_secs(1);
/// The cap grows with the rank, so that a thousand waiters ask seventy times a second.
const CAP_BY_RANK: Duration = Duration::from_millis(100);
/// One waiter of each manager looks this often, however many entries stand before it: all of them
/// may be dead. A thousand managers ask two hundred times a second.
const LONGEST_CAP_FOREMOST: Duration = Duration::from_secs(5);
/// The others of that manager: often against the time after which an entry ends.
const LONGEST_CAP: Duration = Duration::from_secs(30);
/// Whoever may publish can say that a waiter is the first, as often as it likes.
const HEAD_INTERVAL: Duration = Duration::from_millis(50);
/// A key without expiry is about to get one, or is no lock: four looks tell.
pub(crate) const NO_EXPIRY_POLL: Duration = Duration::from_millis(50);
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
pub(crate) fn handover_lease(mode: Mode, ttl: Ttl) -> Duration {
    match mode {
        Mode::Subscribed => crate::protocol::lease::HANDOVER_LEASE.min(ttl.as_duration()),
        Mode::Polling => poll_interval(ttl).saturating_mul(3),
    }
}

/// Until when the entry of a waiter stands, counted from now: its wait, in steps of at most
/// ten minutes. It is written anew when less than half of a step is left.
///
/// Nobody can see that a waiter which polls is dead: its entry ends when it has not asked for some
/// polls, and is written anew each time.
pub(crate) fn entry_lifetime(
    mode: Mode,
    left: Duration,
    ttl: Ttl,
    command_timeout: Duration,
) -> Duration {
    let longest = match mode {
        Mode::Subscribed => LONGEST_SILENCE,
        Mode::Polling => {
            let polls = poll_interval(ttl).saturating_mul(4);
            let answers = command_timeout.saturating_mul(2);
            polls.saturating_add(answers).min(LONGEST_SILENCE)
        }
    };
    left.min(longest)
}

/// Whether an entry that stands until `gone_at` has to be extended for a wait until `deadline`.
pub(crate) fn needs_extension(
    mode: Mode,
    now: Moment,
    expires_at: Moment,
    deadline: Moment,
) -> bool {
    let is_due = match mode {
        Mode::Subscribed => expires_at.since(now) < LONGEST_SILENCE / 2,
        Mode::Polling => true,
    };
    expires_at < deadline && is_due
}

/// What is known of the holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HolderExpiry {
    /// A lock of ours, which ends by itself then.
    Native { ends: Moment },
    /// Another client's, or nobody's while other clients go first.
    Foreign { ends: Moment },
    /// Anybody, in a dialect where nobody tells those who wait.
    Polled { ends: Moment },
    /// A key without expiry: either about to get one, or not a lock.
    NoExpiry,
}

impl HolderExpiry {
    /// When the holder's lease ends, if nobody extends it.
    pub(crate) fn ends(self) -> Option<Moment> {
        match self {
            Self::Native { ends } | Self::Foreign { ends } | Self::Polled { ends } => Some(ends),
            Self::NoExpiry => None,
        }
    }
}

/// Where a waiter stands among those of its manager on the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocalPosition {
    /// No other one stands before it: it looks at the holder's expiry.
    First,
    Behind,
}

/// When the holder's lease ends, as some waiter saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObservedExpiry {
    pub(crate) at: Moment,
    pub(crate) holder_expires_at: Moment,
}

/// When to look next.
#[derive(Clone, Debug)]
pub(crate) struct PollSchedule {
    rank: u64,
    holder_expiry: HolderExpiry,
    looked: Moment,
    poll: Option<Duration>,
    local_position: LocalPosition,
    /// Whether the next look comes because of a push that said that we are the first.
    next_is_for_head: bool,
    /// The earliest time for another such look.
    next_head: Moment,
    jitter: Jitter,
    /// Between two looks where those who release tell nobody.
    longest_pause: Duration,
    /// The pauses of one whom nobody ever tells.
    pauses: Backoff,
    next: Moment,
}

impl PollSchedule {
    /// Where those who release tell nobody, somebody looks at least every `longest_pause`: the
    /// first in the queue behind another client's lock, and all in other dialects.
    pub(crate) fn new(now: Moment, longest_pause: Duration, mut jitter: Jitter) -> Self {
        let pauses = jitter.fork();
        Self {
            pauses: Backoff::between(longest_pause / FIRST_PAUSE, longest_pause, pauses),
            longest_pause,
            rank: 0,
            holder_expiry: HolderExpiry::Native { ends: now },
            looked: now,
            poll: None,
            local_position: LocalPosition::First,
            next_is_for_head: false,
            next_head: now,
            jitter,
            next: now,
        }
    }

    /// The answer to a look. `poll` is set for those who are not pushed to.
    pub(crate) fn seen(
        &mut self,
        now: Moment,
        rank: u64,
        holder_expiry: HolderExpiry,
        poll: Option<Duration>,
        local_position: LocalPosition,
    ) {
        self.asked(now);
        self.looked = now;
        self.rank = rank;
        self.holder_expiry = holder_expiry;
        self.poll = poll;
        self.local_position = local_position;
        self.plan();
    }

    /// A look has ended, with an answer or without one.
    pub(crate) fn asked(&mut self, now: Moment) {
        if std::mem::take(&mut self.next_is_for_head) {
            self.next_head = now.plus(HEAD_INTERVAL);
        }
    }

    /// A push said that we are the first now, and when the holder's lease ends. Anybody who may
    /// publish can say so: it never puts a look off, and brings at most one forward in 50 ms.
    pub(crate) fn is_head(&mut self, now: Moment, holder_expires_at: Moment) {
        self.rank = 0;
        self.local_position = LocalPosition::First;
        self.holder_expiry = HolderExpiry::Native {
            ends: holder_expires_at,
        };
        let cap = now.plus(self.jitter.shorten(CAP));
        let look = self
            .at_expiry(holder_expires_at, 0)
            .min(cap)
            .max(self.next_head);
        if look < self.next {
            self.next = look;
            self.next_is_for_head = true;
        }
    }

    /// Those of this manager who stood before have left. One of them may have seen later than this
    /// one when the holder's lease ends.
    pub(crate) fn is_first(&mut self, now: Moment, seen: Option<ObservedExpiry>) {
        self.local_position = LocalPosition::First;
        if let HolderExpiry::Native { ends } = &mut self.holder_expiry
            && let Some(seen) = seen.filter(|seen| seen.at > self.looked)
        {
            *ends = seen.holder_expires_at;
        }
        // The one before has looked until now.
        let cap = now.plus(self.jitter.shorten(self.cap()));
        self.next = self.next.min(cap);
        if let HolderExpiry::Native { ends } | HolderExpiry::Foreign { ends } = self.holder_expiry {
            let rank = self.rank_in_steps();
            self.next = self.next.min(self.at_expiry(ends, rank));
        }
    }

    /// Something happened that only asking can tell.
    pub(crate) fn at_once(&mut self, now: Moment) {
        self.next = now;
    }

    pub(crate) fn next(&self) -> Moment {
        self.next
    }

    fn plan(&mut self) {
        let rank = self.rank_in_steps();
        let cap = self.cap();
        let mut next = self.looked.plus(self.jitter.shorten(cap));
        if let Some(poll) = self.poll {
            next = next.min(self.looked.plus(self.jitter.shorten(poll)));
        }
        let is_first = self.local_position == LocalPosition::First;
        match self.holder_expiry {
            HolderExpiry::Native { ends } if is_first => {
                next = next.min(self.at_expiry(ends, rank))
            }
            HolderExpiry::Foreign { ends } if is_first => {
                // The key is free, and a waiter of a newer version comes first: there is no expiry to
                // poll at. The server notifies that waiter, and this one when its turn comes.
                if rank == 0 || ends > self.looked {
                    next = next.min(self.at_expiry(ends, rank));
                }
                if rank == 0 {
                    let poll = self.looked.plus(self.jitter.shorten(self.longest_pause));
                    next = next.min(poll);
                }
            }
            HolderExpiry::Polled { ends } => {
                let spread = SPREAD.saturating_sub(self.jitter.anywhere_in(SPREAD));
                next = self.looked.plus(self.pauses.pause());
                next = next.min(ends.plus(AFTER_EXPIRY).plus(spread));
            }
            HolderExpiry::NoExpiry => next = next.min(self.looked.plus(NO_EXPIRY_POLL)),
            HolderExpiry::Native { .. } | HolderExpiry::Foreign { .. } => {}
        }
        // An expiry that is already past must not become a hot loop.
        self.next = next.max(self.looked.plus(AFTER_EXPIRY));
    }

    fn rank_in_steps(&self) -> u32 {
        u32::try_from(self.rank).unwrap_or(u32::MAX)
    }

    /// The longest time without a look.
    fn cap(&self) -> Duration {
        let longest = match self.local_position {
            LocalPosition::First => LONGEST_CAP_FOREMOST,
            LocalPosition::Behind => LONGEST_CAP,
        };
        let by_rank = CAP_BY_RANK.saturating_mul(self.rank_in_steps());
        CAP.max(by_rank).min(longest)
    }

    fn at_expiry(&mut self, ends: Moment, rank: u32) -> Moment {
        let step = STEP_BY_RANK.saturating_mul(rank);
        let spread = SPREAD_AT_EXPIRY.saturating_sub(AFTER_EXPIRY);
        let after = if step < spread {
            step
        } else {
            self.jitter.anywhere_in(spread)
        };
        ends.plus(AFTER_EXPIRY).plus(after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_millis(ms)
    }

    const LONGEST_PAUSE: Duration = Duration::from_millis(100);

    fn poll_schedule() -> PollSchedule {
        PollSchedule::new(at(0), LONGEST_PAUSE, Jitter::seeded(3))
    }

    fn native(ms: u64) -> HolderExpiry {
        HolderExpiry::Native { ends: at(ms) }
    }

    const FOREMOST: LocalPosition = LocalPosition::First;
    const BEHIND: LocalPosition = LocalPosition::Behind;

    #[test]
    fn the_foremost_looks_when_the_holder_s_lease_ends() {
        let mut poll_schedule = poll_schedule();
        poll_schedule.seen(at(100), 0, native(400), None, FOREMOST);
        assert_eq!(poll_schedule.next(), at(402));
        poll_schedule.seen(at(100), 3, native(400), None, FOREMOST);
        assert_eq!(poll_schedule.next(), at(432));
        // Whatever its rank: all before it may be dead.
        for rank in [24, 25, 300, 1_000_000] {
            poll_schedule.seen(at(100), rank, native(400), None, FOREMOST);
            assert!(
                poll_schedule.next() >= at(402) && poll_schedule.next() <= at(650),
                "{rank}"
            );
        }
    }

    #[test]
    fn those_behind_leave_the_look_at_expiry_to_the_foremost() {
        let mut poll_schedule = poll_schedule();
        poll_schedule.seen(at(0), 1, native(100), None, BEHIND);
        assert!(poll_schedule.next() > at(700) && poll_schedule.next() <= at(1_000));
        poll_schedule.seen(at(0), 20, native(100), None, BEHIND);
        assert!(poll_schedule.next() > at(1_400) && poll_schedule.next() <= at(2_000));
    }

    #[test]
    fn nobody_is_silent_for_longer_than_the_cap() {
        let mut poll_schedule = poll_schedule();
        poll_schedule.seen(at(100), 0, native(60_000), None, FOREMOST);
        assert!(poll_schedule.next() > at(850) && poll_schedule.next() <= at(1_100));
        poll_schedule.seen(at(100), 30, native(60_000), None, FOREMOST);
        assert!(poll_schedule.next() > at(2_300) && poll_schedule.next() <= at(3_100));
        for (local_position, longest) in [(FOREMOST, 5_000), (BEHIND, 30_000)] {
            for rank in [1_000, 3_000, 100_000, u64::MAX] {
                poll_schedule.seen(at(100), rank, native(86_000_000), None, local_position);
                let next = poll_schedule.next().since(at(100));
                let longest = Duration::from_millis(longest);
                assert!(next <= longest && next > longest * 3 / 4, "{rank} {next:?}");
            }
        }
    }

    /// However long the queue is, each look finds the entry of the one before still standing.
    #[test]
    fn a_waiter_of_any_rank_stays_in_the_queue() {
        let (ttl, hours) = (Ttl::new(Duration::from_secs(30)).unwrap(), 3_600_000);
        let deadline = at(4 * hours);
        for rank in [0, 19, 2_999, 3_000, 6_000, 100_000, u64::MAX] {
            for local_position in [FOREMOST, BEHIND] {
                let mut poll_schedule = poll_schedule();
                let (mut now, mut expires_at, mut polls) = (at(0), at(0), 0_u64);
                while now < at(2 * hours) {
                    assert!(
                        now <= expires_at || polls == 0,
                        "{rank} fell out at {now:?}"
                    );
                    let mode = Mode::Subscribed;
                    if polls == 0 || needs_extension(mode, now, expires_at, deadline) {
                        let left = deadline.since(now);
                        expires_at =
                            now.plus(entry_lifetime(mode, left, ttl, Duration::from_secs(1)));
                    }
                    poll_schedule.seen(now, rank, native(4 * hours), None, local_position);
                    now = poll_schedule.next();
                    polls += 1;
                }
                assert!(polls >= 2 * hours / 30_000, "{rank}: {polls} looks");
            }
        }
    }

    #[test]
    fn the_first_behind_a_foreign_holder_polls() {
        let mut poll_schedule = poll_schedule();
        let holder_expiry = HolderExpiry::Foreign { ends: at(10_000) };
        poll_schedule.seen(at(0), 0, holder_expiry, None, FOREMOST);
        assert!(poll_schedule.next() <= at(100) && poll_schedule.next() > at(74));
        poll_schedule.seen(at(0), 1, holder_expiry, None, BEHIND);
        assert!(poll_schedule.next() > at(700));
        poll_schedule.seen(
            at(0),
            50,
            HolderExpiry::Foreign { ends: at(300) },
            None,
            FOREMOST,
        );
        assert!(poll_schedule.next() <= at(550) && poll_schedule.next() >= at(302));
    }

    /// When each of so many looks comes, behind a holder who does not end.
    fn polls(mut poll_schedule: PollSchedule, count: usize) -> Vec<Moment> {
        let mut now = at(0);
        let mut moments = Vec::new();
        for _ in 0..count {
            poll_schedule.seen(
                now,
                0,
                HolderExpiry::Polled { ends: at(600_000) },
                None,
                FOREMOST,
            );
            now = poll_schedule.next();
            moments.push(now);
        }
        moments
    }

    #[test]
    fn behind_a_newer_waiter_nobody_asks_all_the_time() {
        let mut poll_schedule = poll_schedule();
        let free = HolderExpiry::Foreign { ends: at(1_000) };
        poll_schedule.seen(at(1_000), 1, free, None, FOREMOST);
        assert!(poll_schedule.next() > at(1_700) && poll_schedule.next() <= at(2_000));
    }

    #[test]
    fn whom_nobody_tells_backs_off_to_the_longest_pause() {
        let moments = polls(poll_schedule(), 40);
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
        let of = |seed| {
            polls(
                PollSchedule::new(at(0), LONGEST_PAUSE, Jitter::seeded(seed)),
                50,
            )
        };
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
        let mut poll_schedule = poll_schedule();
        for _ in 0..10 {
            poll_schedule.seen(
                at(0),
                0,
                HolderExpiry::Polled { ends: at(7) },
                None,
                FOREMOST,
            );
            assert!(poll_schedule.next() >= at(9) && poll_schedule.next() <= at(29));
        }
    }

    #[test]
    fn a_key_without_expiry_is_looked_at_soon() {
        let mut poll_schedule = poll_schedule();
        poll_schedule.seen(at(0), 4, HolderExpiry::NoExpiry, None, BEHIND);
        assert_eq!(poll_schedule.next(), at(50));
    }

    #[test]
    fn without_pushes_everybody_polls_three_times_within_a_claim() {
        let ttl = Ttl::new(Duration::from_secs(30)).unwrap();
        let mut poll_schedule = poll_schedule();
        poll_schedule.seen(at(0), 12, native(60_000), Some(poll_interval(ttl)), BEHIND);
        assert!(poll_schedule.next() <= at(500) && poll_schedule.next() > at(375));
        assert_eq!(
            handover_lease(Mode::Polling, ttl),
            Duration::from_millis(1_500)
        );
        let short = Ttl::new(Duration::from_millis(150)).unwrap();
        assert_eq!(poll_interval(short), Duration::from_millis(50));
        assert_eq!(
            handover_lease(Mode::Polling, short),
            Duration::from_millis(150)
        );
        assert_eq!(
            handover_lease(Mode::Subscribed, short),
            Duration::from_millis(150)
        );
        assert_eq!(
            handover_lease(Mode::Subscribed, ttl),
            Duration::from_secs(2)
        );
    }

    #[test]
    fn a_push_to_the_head_brings_the_look_forward() {
        let mut poll_schedule = poll_schedule();
        poll_schedule.seen(at(0), 30, native(60_000), None, BEHIND);
        assert!(poll_schedule.next() > at(2_000));
        poll_schedule.is_head(at(100), at(300));
        assert_eq!(poll_schedule.next(), at(302));
        // The holder may have renewed: then the answer says when it ends.
        poll_schedule.seen(at(302), 0, native(60_000), None, FOREMOST);
        poll_schedule.is_head(at(400), at(90_000));
        assert!(poll_schedule.next() <= at(1_302));
        poll_schedule.at_once(at(7));
        assert_eq!(poll_schedule.next(), at(7));
    }

    #[test]
    fn pushes_to_the_head_cause_one_look_in_50_ms_and_put_none_off() {
        let mut poll_schedule = poll_schedule();
        let mut now = at(0);
        poll_schedule.seen(now, 5, native(60_000), None, BEHIND);
        let mut polls = Vec::new();
        while now < at(1_000) {
            // Whatever they say.
            let ends = if now.as_nanos().is_multiple_of(3) {
                now
            } else {
                at(86_000_000)
            };
            poll_schedule.is_head(now, ends);
            if now >= poll_schedule.next() {
                polls.push(now);
                poll_schedule.seen(now, 5, native(60_000), None, BEHIND);
            }
            now = now.plus(Duration::from_micros(500));
        }
        assert!(polls.len() <= 20, "{}", polls.len());
        let too_soon = |pair: &[Moment]| pair[1].since(pair[0]) < HEAD_INTERVAL;
        assert!(!polls.windows(2).any(too_soon), "{polls:?}");

        // Nor does a look that is refused bring the next one forward.
        let mut polls = 0;
        poll_schedule.at_once(at(1_200));
        for ms in 1_000..2_000 {
            poll_schedule.is_head(at(ms), at(ms));
            if at(ms) >= poll_schedule.next() {
                polls += 1;
                poll_schedule.asked(at(ms));
                poll_schedule.at_once(at(ms + 500));
            }
        }
        assert!(polls <= 21, "{polls}");

        poll_schedule.seen(at(2_000), 0, native(2_500), None, FOREMOST);
        for ms in (2_000..2_500).step_by(10) {
            poll_schedule.is_head(at(ms), at(86_000_000));
        }
        assert_eq!(
            poll_schedule.next(),
            at(2_502),
            "the look at the expiry stays"
        );
    }

    #[test]
    fn the_next_foremost_goes_by_what_the_last_one_saw() {
        let mut poll_schedule = poll_schedule();
        poll_schedule.seen(at(0), 7, native(100), None, BEHIND);
        let seen = ObservedExpiry {
            at: at(400),
            holder_expires_at: at(2_400),
        };
        poll_schedule.is_first(at(400), Some(seen));
        // By its rank it would have looked after 1 s, and 5 s is the longest from now on.
        assert!(poll_schedule.next() > at(700) && poll_schedule.next() <= at(1_000));

        poll_schedule.seen(at(0), 999, native(100), None, BEHIND);
        poll_schedule.is_first(at(9_000), None);
        assert_eq!(
            poll_schedule.next().max(at(350)),
            at(350),
            "its holder is over by now"
        );
        poll_schedule.seen(at(0), 999, native(100), None, BEHIND);
        let seen = ObservedExpiry {
            at: at(9_000),
            holder_expires_at: at(11_000),
        };
        poll_schedule.is_first(at(9_000), Some(seen));
        assert!(poll_schedule.next() >= at(11_002) && poll_schedule.next() <= at(11_250));
        // What it saw itself after that counts.
        poll_schedule.seen(at(9_500), 3, native(9_600), None, FOREMOST);
        poll_schedule.is_first(at(9_500), Some(seen));
        assert_eq!(poll_schedule.next(), at(9_632));
    }

    #[test]
    fn an_expiry_in_the_past_is_no_hot_loop() {
        let mut poll_schedule = poll_schedule();
        poll_schedule.seen(at(500), 0, native(100), None, FOREMOST);
        assert_eq!(poll_schedule.next(), at(502));
    }

    #[test]
    fn long_waits_are_extended_in_time() {
        let day = Duration::from_secs(86_400);
        let second = Duration::from_secs(1);
        let ttl = Ttl::new(Duration::from_secs(30)).unwrap();
        let stays = |mode, left| entry_lifetime(mode, left, ttl, second);
        let told = Mode::Subscribed;
        assert_eq!(stays(told, 5 * second), 5 * second);
        assert_eq!(stays(told, day), LONGEST_SILENCE);
        let expires_at = at(600_000);
        let wants = |mode, now, deadline| needs_extension(mode, at(now), expires_at, at(deadline));
        assert!(!wants(told, 0, 86_400_000));
        assert!(wants(told, 300_001, 86_400_000));
        assert!(!wants(told, 300_001, 600_000));
        // Nobody sees that one who asks is dead: its entry lasts for four polls and two answers.
        assert_eq!(stays(Mode::Polling, day), 4 * second);
        assert_eq!(stays(Mode::Polling, second), second);
        assert!(wants(Mode::Polling, 0, 86_400_000) && !wants(Mode::Polling, 0, 600_000));
        let longest = entry_lifetime(Mode::Polling, Duration::MAX, ttl, Duration::MAX);
        assert_eq!(longest, LONGEST_SILENCE);
    }
}
