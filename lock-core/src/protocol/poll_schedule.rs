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
                next = next.min(self.at_expiry(ends, rank));
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
mod tests;
