//! When a waiter polls. Usually a notification comes first; polls cover all other cases.

use std::time::Duration;

use crate::backoff::{Backoff, Jitter};
use crate::clock::Moment;
use crate::local_queue::{LocalPosition, ObservedExpiry};
use crate::ttl::Ttl;
use crate::wire::Mode;

/// How often a waiter polls that the server cannot notify, unless the manager's setting says otherwise. Shorter than the
/// retry intervals of other libraries (redsync 50 to 250 ms, redis-py 100 ms), so that waiters of this library get their
/// share. Long enough for a server to serve hundreds of them.
pub const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// A key still exists at PTTL 0, and its expiry is in whole milliseconds.
const AFTER_EXPIRY: Duration = Duration::from_millis(2);
/// The first waiters of several managers poll one after another at the holder's expiry, so that the
/// first waiter in the queue finds the key free.
const STEP_BY_RANK: Duration = Duration::from_millis(10);
/// Waiters further back poll at a random time within this span after the expiry.
const SPREAD_AT_EXPIRY: Duration = Duration::from_millis(250);
/// The longest time without a poll. It bounds what a lost notification costs the first waiter.
const CAP: Duration = Duration::from_secs(1);
/// The cap grows with the rank, so that a thousand waiters make only 77 polls per second, and ten
/// thousand 420.
const CAP_BY_RANK: Duration = Duration::from_millis(100);
/// The first waiter of each manager polls at least this often, whatever its rank: all entries ahead
/// of it may be dead. A thousand managers make 250 polls per second.
const LONGEST_CAP_FIRST: Duration = Duration::from_secs(5);
/// The cap of the manager's other waiters: short compared to the lifetime of an entry.
const LONGEST_CAP: Duration = Duration::from_secs(30);
/// Any client with the right to publish can send head-of-queue notifications as often as it likes.
const HEAD_INTERVAL: Duration = Duration::from_millis(50);
/// A key without an expiry is about to get one, or is not a lock. Four polls decide.
pub(crate) const NO_EXPIRY_POLL: Duration = Duration::from_millis(50);
/// Other clients write SETNX and EXPIRE as two commands. The second may take this long.
pub(crate) const NO_EXPIRY_GRACE: Duration = Duration::from_millis(200);
/// A waiter without notifications polls this often, or three times within its handover lease.
const POLL: Duration = Duration::from_millis(500);
/// The first interval of a waiter that polls in a dialect, as a part of the longest interval: a short
/// section ends within it.
const FIRST_PAUSE: u32 = 8;
/// Waiters that poll in a dialect spread their polls over this time after the holder's expiry.
const SPREAD: Duration = Duration::from_millis(20);
/// How long an entry lives without a poll of its waiter.
const LONGEST_SILENCE: Duration = Duration::from_secs(600);

/// How often a waiter without notifications polls.
pub(crate) fn poll_interval(ttl: Ttl) -> Duration {
    POLL.min(ttl.as_duration() / 3)
}

/// The lease that a handover gives to this waiter: short when a notification reaches it at once,
/// three poll intervals when it polls.
pub fn handover_lease(mode: Mode, ttl: Ttl) -> Duration {
    match mode {
        Mode::Subscribed => crate::lease::HANDOVER_LEASE.min(ttl.as_duration()),
        Mode::Polling => poll_interval(ttl).saturating_mul(3),
    }
}

/// How long a waiter's entry lives from now on: the rest of its wait, in steps of at most ten
/// minutes. The waiter writes it anew when less than half of a step is left.
///
/// The server cannot see that a polling waiter is dead. So the entry of a polling waiter expires
/// after a few missed polls, and each poll writes it anew.
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

/// Whether an entry that expires at `expires_at` has to be extended for a wait until `deadline`.
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

/// When the holder's lease ends, and how the holder releases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HolderExpiry {
    /// A native lock, which expires at this moment.
    Native { ends: Moment },
    /// Another client's lock, or a key that is kept free for other clients.
    Foreign { ends: Moment },
    /// Any lock in a dialect without notifications.
    Polled { ends: Moment },
    /// A lock whose release is announced to all waiters, and whose expiry is not.
    Notified { ends: Moment },
    /// A key without an expiry: it is about to get one, or it is not a lock.
    NoExpiry,
}

impl HolderExpiry {
    /// When the holder's lease ends unless it is renewed.
    pub fn ends(self) -> Option<Moment> {
        match self {
            Self::Native { ends }
            | Self::Foreign { ends }
            | Self::Polled { ends }
            | Self::Notified { ends } => Some(ends),
            Self::NoExpiry => None,
        }
    }
}

/// When a waiter polls next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PollSchedule {
    rank: u64,
    holder_expiry: HolderExpiry,
    polled_at: Moment,
    poll: Option<Duration>,
    local_position: LocalPosition,
    /// Whether a head-of-queue notification caused the next poll.
    next_is_for_head: bool,
    /// The earliest time for another poll that such a notification causes.
    next_head: Moment,
    jitter: Jitter,
    /// The growing intervals of a waiter that never gets a notification. The longest of them is also
    /// the longest interval between polls when a release sends no notification.
    pauses: Backoff,
    next: Moment,
}

impl PollSchedule {
    /// When a release sends no notification, a waiter polls at least every `longest_pause`: the first
    /// in the queue behind another client's lock, and every waiter in other dialects.
    pub(crate) fn new(now: Moment, longest_pause: Duration, mut jitter: Jitter) -> Self {
        let pauses = jitter.fork();
        Self {
            pauses: Backoff::between(longest_pause / FIRST_PAUSE, longest_pause, pauses),
            rank: 0,
            holder_expiry: HolderExpiry::Native { ends: now },
            polled_at: now,
            poll: None,
            local_position: LocalPosition::First,
            next_is_for_head: false,
            next_head: now,
            jitter,
            next: now,
        }
    }

    /// Records the reply to a poll. `poll` is set for waiters that get no notifications.
    pub(crate) fn on_reply(
        &mut self,
        now: Moment,
        rank: u64,
        holder_expiry: HolderExpiry,
        poll: Option<Duration>,
        local_position: LocalPosition,
    ) {
        self.end_poll(now);
        self.polled_at = now;
        self.rank = rank;
        self.holder_expiry = holder_expiry;
        self.poll = poll;
        // The server knows the order, if there is one, and another waiter may only have read its reply earlier.
        let has_order = !matches!(holder_expiry, HolderExpiry::Notified { .. });
        self.local_position = if rank == 0 && has_order {
            LocalPosition::First
        } else {
            local_position
        };
        self.plan();
    }

    /// Records the end of a poll, with or without a reply.
    pub(crate) fn end_poll(&mut self, now: Moment) {
        if std::mem::take(&mut self.next_is_for_head) {
            self.next_head = now.plus(HEAD_INTERVAL);
        }
    }

    /// Records a notification that this waiter is the first now, with the end of the holder's lease.
    /// Any client with the right to publish can send it. So it never delays a poll, and it brings at
    /// most one poll forward in 50 ms.
    pub(crate) fn is_head(&mut self, now: Moment, holder_expires_at: Moment) {
        self.rank = 0;
        self.local_position = LocalPosition::First;
        self.holder_expiry = HolderExpiry::Native {
            ends: holder_expires_at,
        };
        let cap = now.plus(self.jitter.shorten(CAP));
        let poll = self
            .at_expiry(holder_expires_at, 0)
            .min(cap)
            .max(self.next_head);
        if poll < self.next {
            self.next = poll;
            self.next_is_for_head = true;
        }
    }

    /// Records that the manager's waiters ahead of this one have left. One of them may have seen a
    /// later end of the holder's lease.
    pub(crate) fn is_first(&mut self, now: Moment, seen: Option<ObservedExpiry>) {
        self.local_position = LocalPosition::First;
        if let HolderExpiry::Native { ends } | HolderExpiry::Notified { ends } =
            &mut self.holder_expiry
            && let Some(seen) = seen.filter(|seen| seen.at > self.polled_at)
        {
            *ends = seen.holder_expires_at;
        }
        // The waiter ahead has polled until now.
        let cap = now.plus(self.jitter.shorten(self.cap()));
        self.next = self.next.min(cap);
        if let HolderExpiry::Native { ends }
        | HolderExpiry::Foreign { ends }
        | HolderExpiry::Notified { ends } = self.holder_expiry
        {
            let rank = self.rank_in_steps();
            self.next = self.next.min(self.at_expiry(ends, rank));
        }
    }

    /// Polls at once, for an event after which only the server knows the state.
    pub(crate) fn at_once(&mut self, now: Moment) {
        self.next = now;
    }

    pub(crate) fn next(&self) -> Moment {
        self.next
    }

    fn plan(&mut self) {
        let rank = self.rank_in_steps();
        let cap = self.cap();
        let mut next = self.polled_at.plus(self.jitter.shorten(cap));
        if let Some(poll) = self.poll {
            next = next.min(self.polled_at.plus(self.jitter.shorten(poll)));
        }
        let is_first = self.local_position == LocalPosition::First;
        match self.holder_expiry {
            HolderExpiry::Native { ends } | HolderExpiry::Notified { ends } if is_first => {
                next = next.min(self.at_expiry(ends, rank));
            }
            HolderExpiry::Foreign { ends } if is_first => {
                // The key is free, and a waiter of a newer version comes first: there is no expiry to
                // poll at. The server notifies that waiter, and this one when its turn comes.
                if rank == 0 || ends > self.polled_at {
                    next = next.min(self.at_expiry(ends, rank));
                }
                if rank == 0 {
                    let longest = self.pauses.longest();
                    let poll = self.polled_at.plus(self.jitter.shorten(longest));
                    next = next.min(poll);
                }
            }
            HolderExpiry::Polled { ends } => {
                let spread = SPREAD.saturating_sub(self.jitter.anywhere_in(SPREAD));
                next = self.polled_at.plus(self.pauses.pause());
                next = next.min(ends.plus(AFTER_EXPIRY).plus(spread));
            }
            HolderExpiry::NoExpiry => next = next.min(self.polled_at.plus(NO_EXPIRY_POLL)),
            HolderExpiry::Native { .. }
            | HolderExpiry::Foreign { .. }
            | HolderExpiry::Notified { .. } => {}
        }
        // An expiry in the past must not become a hot loop.
        self.next = next.max(self.polled_at.plus(AFTER_EXPIRY));
    }

    fn rank_in_steps(&self) -> u32 {
        u32::try_from(self.rank).unwrap_or(u32::MAX)
    }

    /// The longest time without a poll.
    fn cap(&self) -> Duration {
        let longest = match self.local_position {
            LocalPosition::First => LONGEST_CAP_FIRST,
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
