//! One acquisition, from its first command to its result, as a state machine without IO.
//!
//! The driver passes events with the time: a reply, a failure, a notification, the end of a pause. The
//! machine returns the next [`Action`], or its result. It sends nothing and reads no clock, so the model
//! and the simulation drive the same machine over a network of their own. quinn-proto is built in this
//! way.

use std::time::Duration;

use crate::backoff::Jitter;
use crate::clock::Moment;
use crate::local_queue::Peers;
use crate::mailbox::Notification;
use crate::owner_id::OwnerId;

mod action;
mod attempt;
mod grant;
mod no_expiry;
mod outage;
mod outcome;
mod replies;
mod sent;
mod waiting;

pub use self::action::{
    AcquireConfig, AcquireFailure, AcquireOrigin, AcquireResult, Action, Connectivity, DropAction,
    LeaseKind, NextAction, Patience, QueueLimit, RenewReason,
};
use self::attempt::Attempt;
use self::no_expiry::NoExpiry;
pub use self::outage::Outage;
pub use self::outcome::{
    AcquireOutcome, FOREIGN_LABEL, Failure, FailureClass, ObservedHolder, RenewOutcome,
};
use self::replies::Busy;
pub use self::sent::NO_ORIGIN;
pub use self::sent::SentCopy;
pub use self::sent::{Origin, ReplyTimes, SendContext, SentAcquires};
use self::waiting::Waiting;

/// The least time limit of the first command, also when the wait is shorter.
const FIRST_POLL_TIMEOUT: Duration = Duration::from_millis(50);

/// One acquisition.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acquisition<E> {
    sent: SentAcquires,
    phase: AcquirePhase<E>,
    strategy: Strategy<E>,
    no_expiry: NoExpiry,
    exposure: Exposure,
    lease_kind: LeaseKind,
    command_timeout: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum AcquirePhase<E> {
    /// Nothing was sent yet.
    Idle,
    InFlight(CommandInFlight<E>),
    /// No command is in flight: it waits for a notification, a connection or a moment.
    Queued,
    /// The guard owns the lock.
    Owned,
    Done,
}

/// The command whose reply is awaited.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum CommandInFlight<E> {
    Acquire(AcquireInFlight),
    /// A renewal that confirms a grant.
    Confirm {
        limit: Duration,
    },
    /// A renewal after the server refused the acquire for lack of memory.
    Probe {
        /// In a box, because it is rare and would enlarge every acquisition.
        refusal: Box<E>,
        /// The time limit of the refused acquire.
        limit: Duration,
    },
    Cancel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct AcquireInFlight {
    limit: Duration,
    /// All copies together end by this moment.
    until: Moment,
    late_copies: u8,
    order: CommandOrder,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum CommandOrder {
    /// The acquisition has sent no other command.
    First,
    Later,
}

/// How an acquisition treats a lock that is busy.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(
    clippy::large_enum_variant,
    reason = "an acquisition is in a box already, and most of them wait"
)]
enum Strategy<E> {
    OneAttempt(Attempt),
    Wait(Waiting<E>),
}

/// Who may know the owner id, and so could forge a grant for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Exposure {
    /// The server and this client.
    Private,
    /// A grant that made no guard may have been published, so every subscriber.
    Exposed,
}

impl<E: Failure> Acquisition<E> {
    /// Creates an acquisition that has sent nothing yet.
    pub fn new(config: AcquireConfig, owner_id: OwnerId, jitter: Jitter) -> Self {
        let mut limit = QueueLimit::NONE;
        let (waits_until, mut strategy) = match config.patience {
            Patience::OneAttempt { started, until } => {
                let mut attempt = Attempt::new(started, until);
                if let Some(outage_wait) = config.outage_wait {
                    attempt.outlasts(outage_wait, jitter);
                }
                (None, Strategy::OneAttempt(attempt))
            }
            Patience::Wait {
                started,
                deadline,
                max_queue,
            } => {
                limit = max_queue;
                let mut waiting = Waiting::new(started, deadline, config.retry_interval, jitter);
                if let Some(outage_wait) = config.outage_wait {
                    waiting.outlasts(outage_wait);
                }
                (Some(deadline), Strategy::Wait(waiting))
            }
        };
        let sent = match config.origin {
            AcquireOrigin::New => {
                let (key, lease_config) = (config.key, config.lease_config);
                let mut sent =
                    SentAcquires::new(owner_id, key, lease_config, config.label, waits_until);
                sent.max_queue = limit;
                sent
            }
            AcquireOrigin::Exchange { from } => {
                let (key, label) = (config.key, config.label);
                SentAcquires::new(owner_id, key, config.lease_config, label, None).exchanging(from)
            }
            AcquireOrigin::Downgrade { held, ends } => {
                if let Strategy::OneAttempt(attempt) = &mut strategy {
                    attempt.continues(ends);
                }
                SentAcquires::downgrade(*held, config.lease_config)
            }
        };
        Self {
            sent,
            phase: AcquirePhase::Idle,
            strategy,
            no_expiry: NoExpiry::default(),
            exposure: Exposure::Private,
            lease_kind: config.lease_kind,
            command_timeout: config.command_timeout,
        }
    }

    pub fn sent(&self) -> &SentAcquires {
        &self.sent
    }

    /// Returns the record in which the store notes each copy before it sends it.
    pub fn sent_mut(&mut self) -> &mut SentAcquires {
        &mut self.sent
    }

    /// Returns the last rank in the queue that a reply gave, and when.
    pub fn last_rank(&self) -> Option<(u64, Moment)> {
        match &self.strategy {
            Strategy::OneAttempt(_) => None,
            Strategy::Wait(waiting) => waiting.last_rank(),
        }
    }

    pub fn on_start(&mut self, now: Moment) -> NextAction<E> {
        self.send(now)
    }

    /// Handles a notification. Called only while the machine waits.
    pub fn on_notification(
        &mut self,
        notification: Notification,
        now: Moment,
        peers: &mut impl Peers,
    ) -> NextAction<E> {
        let Some(waiting) = self.idle_waiter() else {
            // An attempt gets no other notification that matters.
            if notification == Notification::ShuttingDown && self.is_idle() {
                return self.fail(AcquireFailure::ShuttingDown);
            }
            return self.next_wait();
        };
        match notification {
            Notification::Grant(grant) => return self.on_grant(grant, now, peers),
            Notification::Head { holder_expires_at } => waiting.on_head(now, holder_expires_at),
            Notification::First => waiting.on_first(now, peers.last_observed()),
            Notification::ShuttingDown => return self.fail(AcquireFailure::ShuttingDown),
            Notification::Released if waiting.is_connected() => return self.send(now),
            // All waiters poll as soon as there is a connection again.
            Notification::Released => {}
            Notification::Poll => {
                let is_connected = waiting.is_connected();
                // A grant may have been lost, and its lease may have ended.
                self.exposure = Exposure::Exposed;
                if is_connected {
                    return self.send(now);
                }
            }
        }
        self.on_timeout(now)
    }

    /// Handles the moment of the last [`Action::Wait`], or an earlier one.
    pub fn on_timeout(&mut self, now: Moment) -> NextAction<E> {
        match &self.strategy {
            Strategy::OneAttempt(attempt) if now < attempt.next_poll() => self.wait(),
            Strategy::OneAttempt(_) => self.send(now),
            Strategy::Wait(waiting) if now >= waiting.ends_at(&self.no_expiry) => self.give_up(now),
            Strategy::Wait(waiting) if waiting.is_poll_due(now) => self.send(now),
            Strategy::Wait(_) => self.wait(),
        }
    }

    /// Handles the result of waiting for a connection.
    pub fn on_reconnect(&mut self, result: Result<(), E>, now: Moment) -> NextAction<E> {
        let timeout = self.command_timeout;
        let Some(waiting) = self.idle_waiter() else {
            return self.on_attempt_reconnect(result, now);
        };
        match result {
            Ok(()) => waiting.on_connected(),
            Err(failure) if failure.class().is_transient() => {
                waiting.record_failure(failure, timeout, timeout, now);
            }
            Err(failure) => return self.fail(AcquireFailure::Backend(failure)),
        }
        self.on_timeout(now)
    }

    /// Handles the result of waiting for a connection, for an attempt that outlasts outages.
    fn on_attempt_reconnect(&mut self, result: Result<(), E>, now: Moment) -> NextAction<E> {
        let is_idle = self.is_idle();
        let Strategy::OneAttempt(attempt) = &mut self.strategy else {
            return self.next_wait();
        };
        match result {
            _ if !is_idle => self.next_wait(),
            Ok(()) => {
                attempt.on_connected();
                self.on_timeout(now)
            }
            // The next try finds out by itself whether there is a connection.
            Err(failure)
                if failure.class().is_transient() && attempt.tries_again(Connectivity::Up, now) =>
            {
                self.wait()
            }
            Err(failure) => self.fail(AcquireFailure::Backend(failure)),
        }
    }

    fn is_idle(&self) -> bool {
        matches!(self.phase, AcquirePhase::Queued)
    }

    /// Returns the waiter, if no command is in flight. Another event changes nothing.
    fn idle_waiter(&mut self) -> Option<&mut Waiting<E>> {
        let is_idle = self.is_idle();
        debug_assert!(
            is_idle,
            "a command is in flight, or the acquisition is done"
        );
        match &mut self.strategy {
            Strategy::Wait(waiting) if is_idle => Some(waiting),
            _ => None,
        }
    }

    /// Continues under a new owner id. The caller has cancelled the old one.
    pub fn on_start_over(&mut self, owner_id: OwnerId, now: Moment) -> NextAction<E> {
        self.sent = self.sent.with_owner_id(owner_id);
        self.exposure = Exposure::Private;
        self.phase = AcquirePhase::Queued;
        self.on_timeout(now)
    }

    /// Returns what is left of the time for outages, if a waiter has one.
    pub fn outage(&self) -> Option<Outage> {
        match &self.strategy {
            Strategy::OneAttempt(_) => None,
            Strategy::Wait(waiting) => waiting.outage(),
        }
    }

    /// Returns whether the lock is the guard's by now. Then an end leaves everything to the guard.
    pub fn is_guarded(&self) -> bool {
        matches!(self.phase, AcquirePhase::Owned)
    }

    /// Ends the use of the owner id: the acquisition was dropped, has ended or starts over.
    pub fn on_drop(&mut self, peers: &mut impl Peers) -> DropAction {
        if self.is_guarded() {
            return DropAction::LeaveToGuard;
        }
        peers.leave(None, None);
        self.phase = AcquirePhase::Done;
        if self.sent.may_be_present() {
            DropAction::Cancel(self.sent.release_request())
        } else {
            DropAction::Forget
        }
    }

    // Sending and waiting.

    /// Sends an acquire, if there is time for it.
    fn send(&mut self, now: Moment) -> NextAction<E> {
        match &mut self.strategy {
            Strategy::OneAttempt(attempt) => {
                if attempt.begin_again(self.command_timeout, now) {
                    self.no_expiry = NoExpiry::default();
                }
            }
            // The server keeps the queue entry until then.
            Strategy::Wait(waiting) if waiting.outage().is_some() => {
                self.sent.waits_until = Some(waiting.deadline_if_reached(now));
            }
            Strategy::Wait(_) => {}
        }
        let mut limit = self.limit(now);
        let order = match self.phase {
            AcquirePhase::Idle => CommandOrder::First,
            _ => CommandOrder::Later,
        };
        if let Strategy::Wait(_) = self.strategy {
            if order == CommandOrder::First {
                limit = limit.max(FIRST_POLL_TIMEOUT.min(self.command_timeout));
            }
            if limit.is_zero() {
                return self.wait();
            }
        }
        self.phase = AcquirePhase::InFlight(CommandInFlight::Acquire(AcquireInFlight {
            limit,
            until: now.plus(limit),
            late_copies: 0,
            order,
        }));
        NextAction::Perform(Action::Acquire { limit })
    }

    /// Returns the time limit of a command that is sent now.
    fn limit(&self, now: Moment) -> Duration {
        let left = match &self.strategy {
            Strategy::OneAttempt(attempt) => attempt.left(&self.no_expiry, now),
            Strategy::Wait(waiting) => waiting.left(&self.no_expiry, now),
        };
        self.command_timeout.min(left)
    }

    /// Waits for the next event. Even when the next poll is due, a notification comes first.
    fn wait(&mut self) -> NextAction<E> {
        self.phase = AcquirePhase::Queued;
        self.next_wait()
    }

    fn next_wait(&self) -> NextAction<E> {
        match &self.strategy {
            Strategy::OneAttempt(attempt) => {
                NextAction::Perform(match attempt.reconnects_until() {
                    Some(until) => Action::Reconnect { until },
                    None => Action::Wait {
                        until: attempt.next_poll(),
                    },
                })
            }
            Strategy::Wait(waiting) => NextAction::Perform(waiting.next_wait(&self.no_expiry)),
        }
    }

    /// Leaves the queue at the end of the wait. A lock that is granted at this moment goes to the
    /// next waiter.
    fn give_up(&mut self, now: Moment) -> NextAction<E> {
        if let Some(value) = self.no_expiry.value() {
            return self.fail(AcquireFailure::NoExpiry { value });
        }
        if let Strategy::Wait(waiting) = &self.strategy
            && self.sent.may_be_present()
            && let Some(limit) = waiting.cancel_limit(now)
        {
            self.phase = AcquirePhase::InFlight(CommandInFlight::Cancel);
            return NextAction::Perform(Action::Cancel { limit });
        }
        self.time_out(now)
    }

    /// Ends the wait.
    fn time_out(&mut self, now: Moment) -> NextAction<E> {
        let Strategy::Wait(waiting) = &mut self.strategy else {
            return self.next_wait();
        };
        let result = waiting.time_out(now);
        self.done(result)
    }

    fn fail(&mut self, failure: AcquireFailure<E>) -> NextAction<E> {
        self.done(AcquireResult::Failed(failure))
    }

    fn done(&mut self, result: AcquireResult<E>) -> NextAction<E> {
        self.phase = AcquirePhase::Done;
        NextAction::Done(result)
    }
}

#[cfg(test)]
impl<E: Failure> Acquisition<E> {
    /// Forgets what only an error would report, so that the model has fewer states.
    pub(crate) fn forget_reports(&mut self) {
        if let Strategy::Wait(waiting) = &mut self.strategy {
            waiting.forget_reports();
        }
    }
}

#[cfg(test)]
mod tests;
