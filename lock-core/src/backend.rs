//! Defines the operations of a backend and their outcomes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::error::LockError;
use crate::protocol::clock::{Clock, Moment, ServerMs};
use crate::protocol::fencing_token::FencingToken;
use crate::protocol::key::LockKey;
use crate::protocol::lease::LeaseConfig;
use crate::protocol::owner_id::{OwnerId, ShortId};
use crate::protocol::poll_schedule::HolderExpiry;
#[cfg(feature = "redis")]
use crate::protocol::wire::{OwnerValue, PlainOwner, tidy_label};

mod acquisition;
#[cfg(feature = "testing")]
pub(crate) mod faulty;
pub(crate) mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;
pub(crate) mod url;

#[cfg(test)]
pub(crate) use self::acquisition::SentCommand;
pub(crate) use self::acquisition::{Acquisition, EntryParams, ReleaseRequest};

/// A boxed future, so that a backend can be a trait object.
pub(crate) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Stores locks: on a server or in this process.
pub(crate) trait Backend: Send + Sync + 'static {
    fn clock(&self) -> Clock;

    /// Sends one acquire, or a poll under the same owner id. Takes at most `limit`.
    ///
    /// A waiting `acquisition` gets an entry in the queue. The backend records in `acquisition`
    /// what a cancel has to undo, before it sends anything: the future may be dropped or fail.
    fn acquire<'a>(
        &'a self,
        acquisition: &'a mut Acquisition,
        limit: Duration,
    ) -> Boxed<'a, Result<AcquireOutcome, LockError>>;

    /// Renews many leases at once. Returns one outcome for each, in order.
    fn renew<'a>(
        &'a self,
        renewals: &'a [Renewal],
        limit: Duration,
    ) -> Boxed<'a, Vec<RenewOutcome>>;

    /// Releases the lock of the owner id and removes its queue entries.
    fn release<'a>(
        &'a self,
        release_request: &'a ReleaseRequest,
        limit: Duration,
    ) -> Boxed<'a, Result<ReleaseOutcome, LockError>>;

    /// Returns whether releases of this lock may go out in one batch with others.
    fn can_batch_release(&self, key: &LockKey) -> bool;

    /// Releases many locks at once, as [`release`](Self::release) does. Returns one outcome for
    /// each, in order.
    fn release_all<'a>(
        &'a self,
        release_requests: &'a [ReleaseRequest],
        limit: Duration,
    ) -> Boxed<'a, Vec<Result<ReleaseOutcome, LockError>>>;

    /// Returns whether a runtime failed to connect and none has succeeded since. Callers then wait
    /// for a connection before they do anything else.
    fn seems_down(&self) -> bool;

    /// Returns whether the calling runtime has a connection that works.
    fn is_connected(&self) -> bool;

    /// Waits at most until `until` for a connection of the calling runtime. Returns the last error
    /// when time runs out, or at once when waiting cannot help.
    fn wait_connected(&self, until: Moment) -> Boxed<'_, Result<(), LockError>>;

    /// Receives notifications for as long as the future is polled.
    fn listen(&self) -> Boxed<'_, ()>;

    /// Returns whether a lock lives as long as its guard without renewals. Any other backend needs
    /// a background worker.
    fn holds_without_renewal(&self) -> bool;
}

/// A handover of the lock to a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) token: FencingToken,
    pub(crate) received: Moment,
    pub(crate) lease: Duration,
    /// The end of the lease; `None` when only a renewal can find it out.
    pub(crate) until: Option<Moment>,
}

/// A message to one waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notification {
    Grant(Grant),
    /// The waiter is the first in the queue, and the holder's lease ends at this moment.
    Head {
        holder_expires_at: Moment,
    },
    /// The waiter is now the first of this manager's waiters on its key.
    First,
    /// The waiter has to poll the server to find out what happened.
    Poll,
}

/// Where a backend delivers notifications.
pub(crate) trait NotificationSink: Send + Sync + 'static {
    /// Notifies the waiter with that owner id. Returns whether such a waiter exists.
    fn notify(&self, owner_id: OwnerId, notification: Notification) -> bool;

    /// Notifies all waiters whose owner ids begin with `short`; usually there is only one. Returns
    /// whether there is any.
    fn notify_by_short_id(&self, short: ShortId, notification: Notification) -> bool;

    /// Makes all waiters poll the server.
    fn poll_all(&self);
}

/// The connection that last sent the acquire of an owner id, in the backend's own numbering.
pub(crate) type Origin = u64;

/// A lease to renew.
#[derive(Clone, Debug)]
pub(crate) struct Renewal {
    pub(crate) key: LockKey,
    pub(crate) owner_id: OwnerId,
    pub(crate) ttl: Duration,
    pub(crate) lease_config: LeaseConfig,
}

/// The outcome of [`Backend::acquire`].
#[derive(Clone, Debug)]
pub(crate) enum AcquireOutcome {
    Held {
        /// `None` in dialects without fencing tokens.
        token: Option<FencingToken>,
        sent: Moment,
        remaining: Duration,
    },
    Queued {
        rank: u64,
        holder_expiry: HolderExpiry,
        holder: Option<ObservedHolder>,
        /// The interval between polls of a waiter that gets no notifications.
        poll: Option<Duration>,
    },
    Busy {
        holder_expiry: HolderExpiry,
        holder: Option<ObservedHolder>,
    },
    /// The lock is free, but more dead waiters are ahead in the queue than the server removes in
    /// one call. The caller sends the acquire again at once.
    More,
}

/// The holder of a lock, read from the key's value in any dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedHolder {
    /// `None` for a holder of another library.
    pub(crate) owner_id: Option<OwnerId>,
    /// `None` if the holder has no token, or it is unknown.
    pub(crate) token: Option<FencingToken>,
    /// Sanitized, because errors and logs contain it.
    pub(crate) label: Arc<str>,
    pub(crate) remaining: Option<Duration>,
}

impl ObservedHolder {
    /// Reads the holder from the key's value. Returns `None` for an empty value: no holder writes
    /// one.
    #[cfg(feature = "redis")]
    pub(crate) fn from_value(value: &str, remaining: Option<Duration>) -> Option<Self> {
        if value.is_empty() {
            return None;
        }
        let (owner_id, token, label) = if let Some(owner) = OwnerValue::parse(value) {
            (Some(owner.owner_id), Some(owner.token), owner.label)
        } else if let Some(owner) = PlainOwner::parse(value) {
            (Some(owner.owner_id), None, owner.label)
        } else {
            (None, None, value.to_owned())
        };
        Some(Self {
            owner_id,
            token,
            label: tidy_label(&label).into(),
            remaining,
        })
    }
}

/// The outcome of one [`Renewal`].
#[derive(Clone, Debug)]
pub(crate) enum RenewOutcome {
    Held {
        token: Option<FencingToken>,
        sent: Moment,
        remaining: Duration,
    },
    NotOwner,
    Failed(LockError),
}

impl RenewOutcome {
    /// Returns the outcome of a renewal that compared the owner.
    #[cfg(feature = "redis")]
    pub(crate) fn if_owner(was_owner: bool, renewal: &Renewal, sent: Moment) -> Self {
        if !was_owner {
            return Self::NotOwner;
        }
        Self::Held {
            token: None,
            sent,
            remaining: renewal.ttl,
        }
    }

    /// Limits the remaining time of a held lock to `left`.
    #[cfg(feature = "redis")]
    pub(crate) fn for_at_most(mut self, left: Duration) -> Self {
        if let Self::Held { remaining, .. } = &mut self {
            *remaining = left.min(*remaining);
        }
        self
    }

    /// Returns the same error for each renewal.
    #[cfg(feature = "redis")]
    pub(crate) fn all_failed(renewals: &[Renewal], error: &LockError) -> Vec<Self> {
        let failed = |_: &Renewal| Self::Failed(error.clone());
        renewals.iter().map(failed).collect()
    }
}

/// The outcome of [`Backend::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReleaseOutcome {
    pub(crate) was_owner: bool,
    pub(crate) server_ms: ServerMs,
    /// The queue has more dead waiters than one call removes. The caller sends the release again.
    pub(crate) more: bool,
}

impl ReleaseOutcome {
    /// Returns the outcome for a lock that was released before; nothing was sent.
    pub(crate) const fn already_released() -> Self {
        Self {
            was_owner: true,
            server_ms: ServerMs::LAST,
            more: false,
        }
    }

    /// Returns the outcome for a dialect without a queue.
    #[cfg(feature = "redis")]
    pub(crate) fn without_waiters(was_owner: bool, server_ms: ServerMs) -> Self {
        Self {
            was_owner,
            server_ms,
            more: false,
        }
    }
}
