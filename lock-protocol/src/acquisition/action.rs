//! The settings of an acquisition, the actions of its driver, and its results.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use super::outcome::ObservedHolder;
use crate::cleanup::ReleaseRequest;
use crate::clock::Moment;
use crate::fencing_token::FencingToken;
use crate::key::LockKey;
use crate::lease::{Lease, LeaseConfig, LeaseEnds};
use crate::owner_id::OwnerId;

/// How many waiters a caller accepts before it. Two bytes, because each waiter has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueLimit(u16);

impl QueueLimit {
    pub const NONE: Self = Self(u16::MAX);

    /// A number that is too large to be of use means no limit.
    pub fn new(waiters: u32) -> Self {
        u16::try_from(waiters).map_or(Self::NONE, Self)
    }

    /// Returns the number; `None` for any number.
    pub fn get(self) -> Option<u32> {
        (self != Self::NONE).then_some(self.0.into())
    }
}

/// How long an acquisition may take.
#[derive(Clone, Copy, Debug)]
pub enum Patience {
    /// One attempt without a queue entry.
    OneAttempt { started: Moment, until: Moment },
    /// Wait until `deadline`. The caller began to wait at `started`.
    Wait {
        started: Moment,
        deadline: Moment,
        max_queue: QueueLimit,
    },
}

/// Whether a lock needs renewals to stay held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaseKind {
    /// The lease ends unless it is renewed.
    Renewed,
    /// As [`Renewed`](Self::Renewed), and a lock that a notification granted counts only from a renewal on.
    Confirmed,
    /// The store holds a renewed lock for as long as its guard.
    Endless,
}

/// Where an acquisition begins.
#[derive(Clone, Debug)]
pub enum AcquireOrigin {
    /// The caller holds nothing.
    New,
    /// The caller holds the exclusive lock that this request would release, and becomes a reader. At the deadline
    /// of `ends` the exclusive lock is lost for its holder, whatever a later reply says.
    Downgrade {
        held: Box<ReleaseRequest>,
        ends: LeaseEnds,
    },
    /// The lock belongs to another owner id, and the caller takes its place.
    Exchange { from: OwnerId },
}

/// The settings of one acquisition.
#[derive(Clone, Debug)]
pub struct AcquireConfig {
    pub key: LockKey,
    pub lease_config: LeaseConfig,
    pub label: Arc<str>,
    pub patience: Patience,
    /// How long the server may be unreachable, in addition to the patience. `None` if an outage counts as waiting.
    pub outage_wait: Option<Duration>,
    pub origin: AcquireOrigin,
    pub lease_kind: LeaseKind,
    pub command_timeout: Duration,
    /// The longest interval between polls when a release sends no notification.
    pub retry_interval: Duration,
}

impl AcquireConfig {
    /// Returns until when a caller waits for a connection, from now on, before it sends anything.
    pub fn connects_until(&self, now: Moment) -> Moment {
        let (started, end) = match self.patience {
            Patience::OneAttempt { started, until } => (started, Some(until)),
            // Its time for outages begins now.
            Patience::Wait { deadline, .. } => {
                (now, Some(deadline).filter(|_| self.outage_wait.is_none()))
            }
        };
        let longest = self.outage_wait.map(|longest| started.plus(longest));
        longest.max(end).unwrap_or(started)
    }

    /// Records that the caller waited for a connection from `since` on. With a time of its own for outages, that was one.
    pub fn on_connected(&mut self, since: Moment, now: Moment) {
        let Some(outage_wait) = &mut self.outage_wait else {
            return;
        };
        let waited = now.since(since);
        match &mut self.patience {
            // Its attempt begins now. The time for outages counts from the start of the call.
            Patience::OneAttempt { started, until } => {
                let end = started.plus(*outage_wait);
                *until = now.plus(self.command_timeout).min(end).max(*until);
            }
            Patience::Wait { deadline, .. } => {
                *outage_wait = outage_wait.saturating_sub(waited);
                *deadline = deadline.plus(waited);
            }
        }
    }
}

/// What an acquisition returns for an event.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a result is moved once, and a box would cost each acquire an allocation"
)]
pub enum NextAction<E> {
    Perform(Action),
    Done(AcquireResult<E>),
}

impl<E> NextAction<E> {
    /// Separates the action from the result. The call moves the whole value, so that a driver's future
    /// has no space for a result while it performs an action.
    pub fn split(self) -> ControlFlow<AcquireResult<E>, Action> {
        match self {
            Self::Perform(action) => ControlFlow::Continue(action),
            Self::Done(result) => ControlFlow::Break(result),
        }
    }
}

/// What the driver does next. It reports the result by the event that the action names.
#[derive(Clone, Copy, Debug)]
pub enum Action {
    /// Send an acquire with a reply within `limit`: [`on_reply`](super::Acquisition::on_reply) or
    /// [`on_no_reply`](super::Acquisition::on_no_reply).
    Acquire { limit: Duration },
    /// Renew to find out whether this owner id has the lock:
    /// [`on_renew_reply`](super::Acquisition::on_renew_reply).
    Renew {
        limit: Duration,
        reason: RenewReason,
    },
    /// Leave the queue: [`on_cancel_reply`](super::Acquisition::on_cancel_reply).
    Cancel { limit: Duration },
    /// Wait for a notification ([`on_notification`](super::Acquisition::on_notification)) or for this
    /// moment ([`on_timeout`](super::Acquisition::on_timeout)). A notification comes first.
    Wait { until: Moment },
    /// Wait for a notification, or at most until this moment for a connection:
    /// [`on_reconnect`](super::Acquisition::on_reconnect).
    Reconnect { until: Moment },
    /// A grant arrived after its lease. Call [`on_drop`](super::Acquisition::on_drop), then
    /// [`on_start_over`](super::Acquisition::on_start_over) with a new owner id.
    StartOver,
}

/// Why a waiter renews before it has a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RenewReason {
    /// A server without memory refuses an acquire, and executes a renewal.
    OutOfMemory,
    /// The end of the granted lease is uncertain or near, or a client may have forged the grant.
    Uncertain,
    /// The server cannot have written the grant.
    Implausible,
}

/// How an acquisition ended.
#[derive(Debug)]
pub enum AcquireResult<E> {
    Acquired {
        token: Option<FencingToken>,
        lease: Lease,
        /// What the guard has to release.
        release_request: ReleaseRequest,
    },
    /// Another holder has the lock, and the acquisition makes one attempt.
    Contended {
        holder: Option<ObservedHolder>,
    },
    /// More others wait than the caller accepts.
    QueueFull {
        holder: Option<ObservedHolder>,
        rank: u64,
    },
    TimedOut {
        waited: Duration,
        holder: Option<ObservedHolder>,
        rank: Option<u64>,
    },
    Failed(AcquireFailure<E>),
}

/// Why an acquisition failed.
#[derive(Debug)]
pub enum AcquireFailure<E> {
    Backend(E),
    /// The key holds this value without an expiry.
    NoExpiry {
        value: Arc<str>,
    },
    /// The work that the lock protects is done for a period. The holder is the last one, whose work succeeded.
    Done {
        holder: ObservedHolder,
    },
    /// The key holds a value of this type.
    ForeignType {
        found: String,
    },
    /// The queue has very many dead waiters. The lock is not held, so it is not contended.
    DeadWaiters,
    /// The reply came after the end of the lease that it granted.
    LateGrant,
    /// A downgrade found that the caller does not hold the key, or an exchange that the earlier owner does not.
    NotOwner,
    /// The server rejects each command as late.
    ClockJumps,
    /// The manager is shutting down.
    ShuttingDown,
}

/// What remains to be done when an acquisition ends or is dropped.
#[derive(Debug)]
pub enum DropAction {
    /// The guard releases the lock.
    LeaveToGuard,
    /// Nothing is left on the server.
    Forget,
    /// The server may have the lock or an entry.
    Cancel(ReleaseRequest),
}

/// Whether the driver has a connection to poll over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Connectivity {
    Up,
    Down,
}
