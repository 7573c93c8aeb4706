//! What an acquisition does with replies and failures.

use std::time::Duration;

use super::{
    AcquireFailure, AcquireInFlight, AcquireOutcome, AcquirePhase, AcquireResult, Acquisition,
    Action, CommandInFlight, CommandOrder, Connectivity, Exposure, Failure, FailureClass,
    NextAction, ObservedHolder, RenewOutcome, RenewReason, Strategy,
};
use crate::cleanup::ReleaseOutcome;
use crate::clock::Moment;
use crate::local_queue::Peers;
use crate::lock_state::Purpose;
use crate::poll_schedule::HolderExpiry;

/// How often a command is sent that the server rejects as late. The rejection carries the server's
/// time, so the next copy is in time unless the clock jumps forward again.
const LATE_TRIES: u8 = 3;

/// A busy lock, as a reply describes it.
#[derive(Debug)]
pub(super) struct Busy {
    pub(super) rank: Option<u64>,
    pub(super) holder_expiry: HolderExpiry,
    pub(super) holder: Option<ObservedHolder>,
    pub(super) poll: Option<Duration>,
}

impl<E: Failure> Acquisition<E> {
    /// Handles the outcome of an acquire.
    pub fn on_reply(
        &mut self,
        outcome: AcquireOutcome,
        now: Moment,
        peers: &mut impl Peers,
    ) -> NextAction<E> {
        let Some(command) = self.take_acquire() else {
            return self.next_wait();
        };
        if let Strategy::Wait(waiting) = &mut self.strategy {
            waiting.on_poll_end(now);
            waiting.end_outage(now);
        }
        match outcome {
            AcquireOutcome::Late => self.on_late(command, now),
            AcquireOutcome::Held {
                token,
                sent,
                remaining,
            } => {
                if command.order == CommandOrder::First {
                    self.sent.on_first_grant();
                }
                self.confirmed(token, sent, remaining, now, peers)
            }
            AcquireOutcome::Queued {
                rank,
                holder_expiry,
                holder,
                poll,
            } => {
                let busy = Busy {
                    rank: Some(rank),
                    holder_expiry,
                    holder,
                    poll,
                };
                self.on_busy(busy, now, peers)
            }
            AcquireOutcome::Full { rank, holder } => {
                self.done(AcquireResult::QueueFull { holder, rank })
            }
            AcquireOutcome::Busy {
                holder_expiry,
                holder,
            } => {
                let busy = Busy {
                    rank: None,
                    holder_expiry,
                    holder,
                    poll: None,
                };
                self.on_busy(busy, now, peers)
            }
            AcquireOutcome::More => self.on_more(now),
            AcquireOutcome::Foreign { found } => self.fail(AcquireFailure::ForeignType { found }),
            AcquireOutcome::NotOwner => self.fail(AcquireFailure::NotOwner),
            AcquireOutcome::StartOver => self.on_taken_back(now),
        }
    }

    /// Goes on under a new owner id: a cancel of the old one may still take effect.
    fn on_taken_back(&mut self, now: Moment) -> NextAction<E> {
        if self.sent.purpose() != Purpose::Acquire {
            // There is no second lock to become a reader of, or to take over.
            return self.fail(AcquireFailure::NotOwner);
        }
        match &mut self.strategy {
            Strategy::OneAttempt(attempt) => {
                // Its own copy is in the way, which is no other holder. It is gone after a pause.
                if attempt.tries_again(Connectivity::Up, now) {
                    return NextAction::Perform(Action::StartOver);
                }
                self.done(AcquireResult::Contended { holder: None })
            }
            Strategy::Wait(waiting) => {
                waiting.poll_at_once(now);
                NextAction::Perform(Action::StartOver)
            }
        }
    }

    /// Takes the acquire that is in flight. An event that belongs to no command changes nothing.
    fn take_acquire(&mut self) -> Option<AcquireInFlight> {
        let AcquirePhase::InFlight(CommandInFlight::Acquire(command)) = &self.phase else {
            debug_assert!(false, "no acquire is in flight");
            return None;
        };
        let command = *command;
        self.phase = AcquirePhase::Queued;
        Some(command)
    }

    /// Takes the renewal that is in flight.
    fn take_renewal(&mut self) -> Option<CommandInFlight<E>> {
        let is_renewal = matches!(
            self.phase,
            AcquirePhase::InFlight(CommandInFlight::Confirm { .. } | CommandInFlight::Probe { .. })
        );
        debug_assert!(is_renewal, "no renewal is in flight");
        if !is_renewal {
            return None;
        }
        match std::mem::replace(&mut self.phase, AcquirePhase::Queued) {
            AcquirePhase::InFlight(command) => Some(command),
            _ => None,
        }
    }

    fn on_late(&mut self, command: AcquireInFlight, now: Moment) -> NextAction<E> {
        let late_copies = command.late_copies + 1;
        if late_copies == LATE_TRIES {
            return self.fail(AcquireFailure::ClockJumps);
        }
        self.phase = AcquirePhase::InFlight(CommandInFlight::Acquire(AcquireInFlight {
            late_copies,
            ..command
        }));
        NextAction::Perform(Action::Acquire {
            limit: command.until.since(now),
        })
    }

    /// Handles a busy lock.
    fn on_busy(&mut self, busy: Busy, now: Moment, peers: &mut impl Peers) -> NextAction<E> {
        if let Some(holder) = busy.holder.as_ref().filter(|holder| holder.is_done()) {
            // However long it may wait: it would get the lock in the next period.
            let holder = holder.clone();
            return self.fail(AcquireFailure::Done { holder });
        }
        let has_no_expiry = self
            .no_expiry
            .observe(busy.holder_expiry, busy.holder.as_ref(), now);
        if has_no_expiry
            && self.no_expiry.left(now).is_zero()
            && let Some(value) = self.no_expiry.value()
        {
            return self.fail(AcquireFailure::NoExpiry { value });
        }
        match &mut self.strategy {
            Strategy::OneAttempt(attempt) if has_no_expiry => {
                attempt.poll_again_at(self.no_expiry.next_poll(now));
                self.wait()
            }
            Strategy::OneAttempt(_) => self.done(AcquireResult::Contended {
                holder: busy.holder,
            }),
            Strategy::Wait(waiting) => {
                waiting.on_busy(busy, now, peers);
                self.wait()
            }
        }
    }

    fn on_more(&mut self, now: Moment) -> NextAction<E> {
        match &mut self.strategy {
            Strategy::OneAttempt(attempt) if attempt.has_ended(now) => {
                self.fail(AcquireFailure::DeadWaiters)
            }
            Strategy::OneAttempt(_) => self.send(now),
            Strategy::Wait(waiting) => {
                if waiting.on_more(self.command_timeout, now) {
                    self.send(now)
                } else {
                    self.wait()
                }
            }
        }
    }

    /// Handles a failed acquire. `connectivity` tells whether the driver has a connection now.
    pub fn on_no_reply(
        &mut self,
        failure: E,
        connectivity: Connectivity,
        now: Moment,
    ) -> NextAction<E> {
        let Some(command) = self.take_acquire() else {
            return self.next_wait();
        };
        let class = failure.class();
        match &mut self.strategy {
            Strategy::OneAttempt(attempt) => {
                if class == FailureClass::Unreachable && attempt.may_resend(now) {
                    return self.send(now);
                }
                if class.is_transient() && attempt.tries_again(connectivity, now) {
                    return self.wait();
                }
                // A poll of a key without an expiry may have had too little time.
                let value = self.no_expiry.value();
                match value.filter(|_| class == FailureClass::TimedOut) {
                    Some(value) => self.fail(AcquireFailure::NoExpiry { value }),
                    None => self.fail(AcquireFailure::Backend(failure)),
                }
            }
            Strategy::Wait(_) if !class.is_transient() => {
                self.fail(AcquireFailure::Backend(failure))
            }
            Strategy::Wait(waiting) => {
                waiting.on_poll_end(now);
                waiting.begin_outage(command.until.minus(command.limit));
                let limit = command.limit;
                if class == FailureClass::OutOfMemory && self.sent.entry().is_some() {
                    self.phase = AcquirePhase::InFlight(CommandInFlight::Probe {
                        refusal: Box::new(failure),
                        limit,
                    });
                    return NextAction::Perform(Action::Renew {
                        limit: self.limit(now),
                        reason: RenewReason::OutOfMemory,
                    });
                }
                waiting.on_failed_poll(failure, limit, self.command_timeout, connectivity, now);
                self.wait()
            }
        }
    }

    /// Handles the result of a renewal that probes or confirms.
    pub fn on_renew_reply(
        &mut self,
        result: Result<RenewOutcome, E>,
        connectivity: Connectivity,
        now: Moment,
        peers: &mut impl Peers,
    ) -> NextAction<E> {
        let Some(command) = self.take_renewal() else {
            return self.next_wait();
        };
        let (outcome, failure) = match result {
            Ok(outcome) => (Some(outcome), None),
            Err(failure) => (None, Some(failure)),
        };
        let timeout = self.command_timeout;
        let mut next = AfterRenewal::Poll;
        if let Strategy::Wait(waiting) = &mut self.strategy {
            match command {
                CommandInFlight::Probe { refusal, limit } => {
                    waiting.on_failed_poll(*refusal, limit, timeout, connectivity, now);
                    next = AfterRenewal::Wait;
                }
                CommandInFlight::Confirm { limit } => {
                    // The grant may be forged, so the queue entry stays, and the next poll finds it
                    // out.
                    self.exposure = Exposure::Exposed;
                    waiting.poll_at_once(now);
                    if let Some(failure) = failure {
                        waiting.record_failure(failure, limit, timeout, now);
                    }
                }
                CommandInFlight::Acquire(_) | CommandInFlight::Cancel => {}
            }
        }
        if let Some(RenewOutcome::Held {
            token,
            sent,
            remaining,
        }) = outcome
        {
            return self.confirmed(token, sent, remaining, now, peers);
        }
        match next {
            AfterRenewal::Wait => self.wait(),
            // The next notification may be another forged grant, so the poll comes first.
            AfterRenewal::Poll => self.on_timeout(now),
        }
    }

    /// Handles the result of a cancel; `None` without a reply.
    pub fn on_cancel_reply(
        &mut self,
        outcome: Option<&ReleaseOutcome>,
        now: Moment,
    ) -> NextAction<E> {
        let is_cancelling = matches!(self.phase, AcquirePhase::InFlight(CommandInFlight::Cancel));
        debug_assert!(is_cancelling, "no cancel is in flight");
        if !is_cancelling {
            return self.next_wait();
        }
        if let Some(outcome) = outcome {
            self.sent.on_cancelled(outcome, now);
        }
        self.time_out(now)
    }
}

/// What follows a renewal that found no lock.
#[derive(Clone, Copy, Debug)]
enum AfterRenewal {
    Wait,
    Poll,
}
