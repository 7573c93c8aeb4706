//! A client without IO, which the model and the simulation share.
//!
//! The production state machines make all decisions: the acquisition, the lease and the cleanup. This
//! driver turns their actions into messages, and messages into their events, as `runtime` does over a
//! real network.

use std::sync::Arc;
use std::time::Duration;

use crate::acquisition::{Acquisition, Connectivity, Failure, FailureClass, Origin, SentCopy};
use crate::cleanup::{AwaitedRelease, Cleanup, CleanupStep, ReleaseRequest};
use crate::clock::Moment;
use crate::clock_sync::{ClockSync, ServerClock};
use crate::fencing_token::FencingToken;
use crate::lease::Lease;
use crate::mailbox::Mailbox;
use crate::owner_id::OwnerId;
use crate::poll_schedule;
use crate::ttl::Ttl;
use crate::wire::Mode;

mod acquiring;
mod holding;
mod wire;

pub(super) use wire::{MessageLane, Reply, Request};

/// A failure of the virtual network or server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Lapse(pub(super) FailureClass);

impl Failure for Lapse {
    fn class(&self) -> FailureClass {
        self.0
    }
}

/// What all callers of one manager share: its connection, and its background worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Manager {
    pub(super) channel: Arc<str>,
    /// The clock sync at the start of the connection.
    pub(super) first: ClockSync,
    pub(super) server_clock: ServerClock,
    pub(super) floor_us: u64,
    pub(super) connectivity: Connectivity,
    /// The number of the connection.
    pub(super) origin: Origin,
    /// Whether waiters receive notifications.
    pub(super) mode: Mode,
    pub(super) command_timeout: Duration,
    /// The lease that a handover sets.
    pub(super) handover_lease: Duration,
    pub(super) cleanups: Vec<RunningCleanup>,
}

/// A cleanup of the background worker.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RunningCleanup {
    pub(super) cleanup: Cleanup,
    /// Until when the reply to the request is awaited.
    pub(super) until: Option<Moment>,
}

/// One caller of `acquire`, and its guard.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(
    clippy::large_enum_variant,
    reason = "most callers acquire, and a box would cost an allocation for each step"
)]
pub(super) enum Caller {
    Idle,
    Acquiring(Acquiring),
    Holding(Holding),
    Done,
    Crashed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Acquiring {
    pub(super) acquisition: Acquisition<Lapse>,
    pub(super) mailbox: Mailbox,
    pub(super) awaited: Awaited,
}

/// What an acquisition waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Awaited {
    Acquire {
        sent: Moment,
        until: Moment,
        copy: SentCopy,
    },
    Renewal {
        sent: Moment,
        until: Moment,
    },
    /// The reply to the cancel at the end of a wait.
    Cancel {
        release: AwaitedRelease<Lapse>,
        until: Moment,
    },
    /// The pause before the cancel is sent again.
    CancelPause {
        release: AwaitedRelease<Lapse>,
        until: Moment,
    },
    Notification {
        until: Moment,
    },
    Connection {
        until: Moment,
    },
}

impl Awaited {
    pub(super) fn until(&self) -> Moment {
        match self {
            Self::Acquire { until, .. }
            | Self::Renewal { until, .. }
            | Self::Cancel { until, .. }
            | Self::CancelPause { until, .. }
            | Self::Notification { until }
            | Self::Connection { until } => *until,
        }
    }

    /// Whether the caller waits for the reply to a command.
    pub(super) fn is_reply(&self) -> bool {
        matches!(
            self,
            Self::Acquire { .. } | Self::Renewal { .. } | Self::Cancel { .. }
        )
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Holding {
    pub(super) lease: Lease,
    pub(super) request: ReleaseRequest,
    pub(super) token: FencingToken,
    pub(super) since: Moment,
    /// When the renewal on its way was sent, and until when its reply is awaited.
    pub(super) renewing: Option<(Moment, Moment)>,
}

/// What a step of a client does to the world around it.
#[derive(Clone, Debug)]
pub(super) enum Effect {
    Send {
        lane: MessageLane,
        owner_id: OwnerId,
        request: Request,
    },
    /// The client no longer awaits the reply to its last command of this lane.
    StopAwaiting {
        lane: MessageLane,
        owner_id: OwnerId,
    },
    /// No notification for this owner id is awaited any more.
    StopListening {
        owner_id: OwnerId,
    },
    Acquired {
        token: FencingToken,
    },
    /// The acquisition ended without the lock.
    NotAcquired(Ended),
    /// A grant came after its lease, and the acquisition goes on under another owner id.
    StartedOver,
    /// A grant needs a renewal before it makes a guard.
    Confirms,
    /// A renewal gave the lease a later end.
    Extended,
    /// Nothing of the owner id is left on the server.
    CleanedUp {
        owner_id: OwnerId,
    },
    /// The cancel is repeated, because a copy of the acquire may still arrive.
    CancelRepeated,
}

/// How an acquisition ended without the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Contended,
    /// The queue was too long for it.
    Refused,
    TimedOut,
    Failed,
    Dropped,
}

/// A step of one caller at one moment.
pub(super) struct ClientStep<'a, P> {
    pub(super) now: Moment,
    pub(super) caller: &'a mut Caller,
    pub(super) manager: &'a mut Manager,
    pub(super) peers: &'a mut P,
    pub(super) effects: &'a mut Vec<Effect>,
    pub(super) next_owner_id: &'a mut dyn FnMut() -> OwnerId,
}

impl Manager {
    pub(super) fn clock_sync(&self) -> ClockSync {
        self.server_clock.for_connection(self.first)
    }

    /// The lease that a handover to a waiter with this ttl sets.
    fn handover_lease(&self, ttl: Ttl) -> Duration {
        match self.mode {
            Mode::Subscribed => self.handover_lease.min(ttl.as_duration()),
            Mode::Polling => poll_schedule::handover_lease(self.mode, ttl),
        }
    }

    pub(super) fn record(&mut self, sent: Moment, server_us: u64) {
        self.server_clock.record(ClockSync {
            sent,
            server_us,
            run_id: self.first.run_id,
        });
    }

    /// Continues on a new connection.
    pub(super) fn reconnect(&mut self, first: ClockSync) {
        self.first = first;
        self.floor_us = first.server_us;
        self.connectivity = Connectivity::Up;
    }

    /// Releases or cancels in the background.
    pub(super) fn submit(&mut self, request: ReleaseRequest, now: Moment) {
        self.cleanups.push(RunningCleanup {
            cleanup: Cleanup::new(request, now, self.command_timeout),
            until: None,
        });
    }

    /// Sends what is due, and removes what has ended.
    pub(super) fn run_cleanups(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        let (floor_us, timeout) = (self.floor_us, self.command_timeout);
        self.cleanups.retain_mut(|running| {
            let owner_id = running.cleanup.request().owner_id;
            match running.cleanup.next_step(now) {
                CleanupStep::Send => {
                    running.cleanup.on_send();
                    running.until = Some(now.plus(timeout));
                    let request = Request::release(running.cleanup.request(), floor_us, now);
                    effects.push(Effect::Send {
                        lane: MessageLane::Release,
                        owner_id,
                        request,
                    });
                }
                CleanupStep::AwaitReply | CleanupStep::WaitUntil(_) => {}
                CleanupStep::Finished | CleanupStep::GaveUp(_) => {
                    effects.push(Effect::CleanedUp { owner_id });
                    return false;
                }
            }
            true
        });
    }

    /// Handles the reply to a release of the background worker.
    pub(super) fn on_release_reply(
        &mut self,
        owner_id: OwnerId,
        reply: &Reply,
        server_us: u64,
        now: Moment,
        effects: &mut Vec<Effect>,
    ) {
        let outcome = reply.as_released(self.first.run_id, server_us);
        let Some(running) = self.running(owner_id) else {
            return;
        };
        running.until = None;
        running.cleanup.on_reply(&outcome, now);
        if let CleanupStep::WaitUntil(_) = running.cleanup.next_step(now) {
            effects.push(Effect::CancelRepeated);
        }
        self.run_cleanups(now, effects);
    }

    /// Handles a release of the background worker that got no reply.
    pub(super) fn on_no_release_reply(
        &mut self,
        owner_id: OwnerId,
        class: FailureClass,
        now: Moment,
        effects: &mut Vec<Effect>,
    ) {
        let Some(running) = self.running(owner_id) else {
            return;
        };
        running.until = None;
        running.cleanup.on_failure(class, now);
        effects.push(Effect::StopAwaiting {
            lane: MessageLane::Release,
            owner_id,
        });
        self.run_cleanups(now, effects);
    }

    fn running(&mut self, owner_id: OwnerId) -> Option<&mut RunningCleanup> {
        self.cleanups.iter_mut().find(|running| {
            running.until.is_some() && running.cleanup.request().owner_id == owner_id
        })
    }

    /// Returns when the background worker has to act on a cleanup next.
    pub(super) fn next_cleanup(&self, now: Moment) -> Option<Moment> {
        let at = |running: &RunningCleanup| match running.cleanup.next_step(now) {
            CleanupStep::WaitUntil(at) => Some(at),
            CleanupStep::AwaitReply => running.until,
            CleanupStep::Send | CleanupStep::Finished | CleanupStep::GaveUp(_) => Some(now),
        };
        self.cleanups.iter().filter_map(at).min()
    }
}

impl Caller {
    pub(super) fn acquiring(&self) -> Option<&Acquiring> {
        match self {
            Self::Acquiring(acquiring) => Some(acquiring),
            _ => None,
        }
    }

    pub(super) fn holding(&self) -> Option<&Holding> {
        match self {
            Self::Holding(holding) => Some(holding),
            _ => None,
        }
    }

    /// Returns the owner id of the acquisition or of the guard.
    pub(super) fn owner_id(&self) -> Option<OwnerId> {
        match self {
            Self::Acquiring(acquiring) => Some(acquiring.acquisition.sent().owner_id),
            Self::Holding(holding) => Some(holding.request.owner_id),
            Self::Idle | Self::Done | Self::Crashed => None,
        }
    }

    /// Returns when the caller has to act next without a message.
    pub(super) fn next_wakeup(&self) -> Option<Moment> {
        match self {
            Self::Acquiring(acquiring) => Some(acquiring.awaited.until()),
            Self::Holding(holding) => match (holding.lease.next_deadline(), holding.renewing) {
                // The end of the lease counts also while a renewal is in flight.
                (_, Some((_, until))) => holding.lease.deadline().map(|end| end.min(until)),
                (next, None) => next,
            },
            Self::Idle | Self::Done | Self::Crashed => None,
        }
    }
}
