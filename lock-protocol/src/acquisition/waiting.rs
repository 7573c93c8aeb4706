//! A caller that waits: when it polls, and what it has learned so far.

use std::time::Duration;

use super::no_expiry::{NO_EXPIRY_LIMIT, NoExpiry};
use super::{AcquireFailure, AcquireResult, Action, Busy, Connectivity, Failure, FailureClass};
use super::{ObservedHolder, Outage, Peers};
use crate::backoff::{Backoff, Jitter};
use crate::clock::Moment;
use crate::local_queue::{LocalPosition, ObservedExpiry};
use crate::poll_schedule::{HolderExpiry, PollSchedule};

/// How long a waiter waits, after the end of its wait, for the confirmation that it has left the queue.
/// After that the background worker continues.
const CANCEL_TIMEOUT: Duration = Duration::from_millis(150);

/// The state of a caller that waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Waiting<E> {
    started: Moment,
    deadline: Moment,
    poll_schedule: PollSchedule,
    backoff: Backoff,
    connectivity: Connectivity,
    observed: Option<Observed>,
    /// In a box, because most waiters have none.
    trouble: Option<Box<Trouble<E>>>,
}

/// What a waiter has only after a failure, or if its request has a time for outages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Trouble<E> {
    last_failure: Option<(E, Moment)>,
    outage: Option<Outage>,
}

/// What the last reply said.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Observed {
    /// The lock has a holder, and the waiter has a rank if there is a queue.
    Busy {
        holder: Option<ObservedHolder>,
        rank: Option<u64>,
        /// When the reply arrived.
        at: Moment,
    },
    /// The lock is free, behind more dead waiters than one call removes. With the moment of the first such reply.
    DeadWaiters { since: Moment },
}

impl<E: Failure> Waiting<E> {
    pub(super) fn new(
        started: Moment,
        deadline: Moment,
        retry_interval: Duration,
        mut jitter: Jitter,
    ) -> Self {
        Self {
            started,
            deadline,
            backoff: Backoff::new(jitter.fork()),
            poll_schedule: PollSchedule::new(started, retry_interval, jitter),
            connectivity: Connectivity::Up,
            observed: None,
            trouble: None,
        }
    }

    /// Sets how long the server may be unreachable, in addition to the wait.
    pub(super) fn outlasts(&mut self, outage_wait: Duration) {
        self.trouble = Some(Box::new(Trouble {
            last_failure: None,
            outage: Some(Outage::new(outage_wait)),
        }));
    }

    pub(super) fn outage(&self) -> Option<Outage> {
        self.trouble.as_ref()?.outage
    }

    fn outage_mut(&mut self) -> Option<&mut Outage> {
        self.trouble.as_mut()?.outage.as_mut()
    }

    /// Records a failure of a command that was sent at `sent`: from then on the wait stands still, if outages have a time
    /// of their own.
    pub(super) fn begin_outage(&mut self, sent: Moment) {
        if let Some(outage) = self.outage_mut() {
            outage.begin(sent);
        }
    }

    /// Records a reply: the wait goes on.
    pub(super) fn end_outage(&mut self, now: Moment) {
        if let Some(outage) = self.outage_mut() {
            let lasted = outage.end(now);
            self.deadline = self.deadline.plus(lasted);
        }
    }

    /// Returns the end of the wait for a busy lock, if the server is reached now.
    pub(super) fn deadline_if_reached(&self, now: Moment) -> Moment {
        let lasts = self.outage().map(|outage| outage.lasts(now));
        self.deadline.plus(lasts.unwrap_or_default())
    }

    /// Returns the end of the wait, or of the time for outages while one lasts.
    fn end(&self) -> Moment {
        let of_outage = self.outage().and_then(|outage| outage.ends_at());
        of_outage.unwrap_or(self.deadline)
    }

    /// Returns the end of the wait, or a little more to find out whether a key gets its expiry.
    pub(super) fn ends_at(&self, no_expiry: &NoExpiry) -> Moment {
        let end = self.end();
        let latest = no_expiry.latest(end.plus(NO_EXPIRY_LIMIT));
        latest.map_or(end, |latest| end.max(latest))
    }

    /// Returns the time that is left for a command: one without a reply uses up the time for outages.
    pub(super) fn left(&self, no_expiry: &NoExpiry, now: Moment) -> Duration {
        let left = self.ends_at(no_expiry).since(now);
        match self.outage() {
            Some(outage) if outage.ends_at().is_none() && !left.is_zero() => {
                left.saturating_add(outage.left(now))
            }
            _ => left,
        }
    }

    /// Returns the time limit for leaving the queue; `None` when the background worker has to do it.
    pub(super) fn cancel_limit(&self, now: Moment) -> Option<Duration> {
        let left = self.end().plus(NO_EXPIRY_LIMIT).since(now);
        let limit = CANCEL_TIMEOUT.min(left);
        (self.is_connected() && !limit.is_zero()).then_some(limit)
    }

    pub(super) fn last_rank(&self) -> Option<(u64, Moment)> {
        match &self.observed {
            Some(Observed::Busy { rank, at, .. }) => Some(((*rank)?, *at)),
            Some(Observed::DeadWaiters { .. }) | None => None,
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.connectivity == Connectivity::Up
    }

    pub(super) fn is_poll_due(&self, now: Moment) -> bool {
        self.is_connected() && now >= self.poll_schedule.next()
    }

    pub(super) fn next_wait(&self, no_expiry: &NoExpiry) -> Action {
        let ends_at = self.ends_at(no_expiry);
        match self.connectivity {
            Connectivity::Up => Action::Wait {
                until: self.poll_schedule.next().min(ends_at),
            },
            // Without a connection the waiter cannot poll.
            Connectivity::Down => Action::Reconnect { until: ends_at },
        }
    }

    /// Records the end of a poll, with or without a reply.
    pub(super) fn on_poll_end(&mut self, now: Moment) {
        self.poll_schedule.end_poll(now);
    }

    /// Records a reply that the lock is busy.
    pub(super) fn on_busy(&mut self, busy: Busy, now: Moment, peers: &mut impl Peers) {
        drop(self.take_last_failure());
        self.backoff.reset();
        let is_notified = matches!(busy.holder_expiry, HolderExpiry::Notified { .. });
        let local_position = if is_notified || busy.rank.is_some() {
            let token = busy.holder.as_ref().and_then(|holder| holder.token);
            let ends = busy.holder_expiry.ends();
            let observed_expiry = ends.map(|holder_expires_at| ObservedExpiry {
                at: now,
                holder_expires_at,
            });
            peers.enter(observed_expiry, token)
        } else {
            LocalPosition::First
        };
        self.poll_schedule.on_reply(
            now,
            busy.rank.unwrap_or(0),
            busy.holder_expiry,
            busy.poll,
            local_position,
        );
        self.observed = Some(Observed::Busy {
            holder: busy.holder,
            rank: busy.rank,
            at: now,
        });
    }

    /// Records that the lock is free, and that the server has removed a hundred dead waiters. Returns whether to poll again
    /// at once: replies of this kind that come for longer than a call may take are no progress, and pauses follow.
    pub(super) fn on_more(&mut self, command_timeout: Duration, now: Moment) -> bool {
        drop(self.take_last_failure());
        let since = match self.observed {
            Some(Observed::DeadWaiters { since }) => since,
            _ => now,
        };
        self.observed = Some(Observed::DeadWaiters { since });
        let is_at_once = now.since(since) < command_timeout;
        if !is_at_once {
            let pause = self.backoff.pause();
            self.poll_schedule.at_once(now.plus(pause));
        }
        is_at_once
    }

    /// Records a poll without a reply. `limit` was its time limit.
    pub(super) fn on_failed_poll(
        &mut self,
        failure: E,
        limit: Duration,
        command_timeout: Duration,
        connectivity: Connectivity,
        now: Moment,
    ) {
        self.connectivity = connectivity;
        self.record_failure(failure, limit, command_timeout, now);
        let pause = self.backoff.pause();
        self.poll_schedule.at_once(now.plus(pause));
    }

    /// Records a failure for the caller, unless it says less than what is known. A poll that timed
    /// out only because the wait ended says less than a holder or an earlier failure. A timeout also
    /// says less than a failure that the server returned a moment ago.
    pub(super) fn record_failure(
        &mut self,
        failure: E,
        limit: Duration,
        command_timeout: Duration,
        now: Moment,
    ) {
        let known = self.last_failure();
        let has_result = self.observed.is_some() || known.is_some();
        let has_recent_cause = known.is_some_and(|(known, at)| {
            known.class() != FailureClass::TimedOut
                && now.since(*at) < command_timeout.saturating_mul(2)
        });
        let says_less = limit < command_timeout && has_result || has_recent_cause;
        if !(failure.class() == FailureClass::TimedOut && says_less) {
            let last_failure = Some((failure, now));
            match &mut self.trouble {
                Some(trouble) => trouble.last_failure = last_failure,
                None => {
                    self.trouble = Some(Box::new(Trouble {
                        last_failure,
                        outage: None,
                    }));
                }
            }
        }
    }

    fn last_failure(&self) -> Option<&(E, Moment)> {
        self.trouble.as_ref()?.last_failure.as_ref()
    }

    /// Forgets the last failure, because the server has replied.
    fn take_last_failure(&mut self) -> Option<(E, Moment)> {
        let trouble = self.trouble.as_mut()?;
        if trouble.outage.is_some() {
            return trouble.last_failure.take();
        }
        self.trouble.take()?.last_failure
    }

    pub(super) fn on_connected(&mut self) {
        self.connectivity = Connectivity::Up;
    }

    pub(super) fn on_head(&mut self, now: Moment, holder_expires_at: Moment) {
        self.poll_schedule.is_head(now, holder_expires_at);
    }

    pub(super) fn on_first(&mut self, now: Moment, observed: Option<ObservedExpiry>) {
        self.poll_schedule.is_first(now, observed);
    }

    pub(super) fn poll_at_once(&mut self, now: Moment) {
        self.poll_schedule.at_once(now);
    }

    /// Returns the result at the end of the wait.
    pub(super) fn time_out(&mut self, now: Moment) -> AcquireResult<E> {
        if let Some((failure, _)) = self.take_last_failure() {
            return AcquireResult::Failed(AcquireFailure::Backend(failure));
        }
        let (holder, rank) = match self.observed.take() {
            Some(Observed::DeadWaiters { .. }) => {
                return AcquireResult::Failed(AcquireFailure::DeadWaiters);
            }
            Some(Observed::Busy { holder, rank, at }) => {
                (holder.map(|holder| holder.aged(now.since(at))), rank)
            }
            None => (None, None),
        };
        AcquireResult::TimedOut {
            waited: now.since(self.started),
            holder,
            rank,
        }
    }

    /// Forgets what only an error would report, for the model: it has no effect on the next step.
    #[cfg(test)]
    pub(super) fn forget_reports(&mut self) {
        if let Some(Observed::Busy { holder, rank, at }) = &mut self.observed {
            *holder = None;
            *rank = None;
            *at = Moment::from_millis(0);
        }
        if let Some(trouble) = &mut self.trouble
            && let Some((_, at)) = &mut trouble.last_failure
        {
            *at = Moment::from_millis(0);
        }
    }
}
