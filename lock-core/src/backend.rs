//! What a backend has to be able to do, and what it answers.

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
pub(crate) mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;
pub(crate) mod url;

#[cfg(test)]
pub(crate) use self::acquisition::SentCommand;
pub(crate) use self::acquisition::{Acquisition, EntryParams, ReleaseRequest};

/// A future behind a pointer: what lets a backend be a trait object.
pub(crate) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where locks live.
pub(crate) trait Backend: Send + Sync + 'static {
    fn clock(&self) -> Clock;

    /// Asks for the lock once, or looks again under the same owner id; stands in the queue while
    /// `attempt` waits. Takes at most `limit`.
    ///
    /// Records in `attempt`, before anything is sent, what has to be taken back should the
    /// future be dropped or fail.
    fn acquire<'a>(
        &'a self,
        acquisition: &'a mut Acquisition,
        limit: Duration,
    ) -> Boxed<'a, Result<AcquireOutcome, LockError>>;

    /// Extends many leases in one go. One answer for each, in order.
    fn renew<'a>(
        &'a self,
        renewals: &'a [Renewal],
        limit: Duration,
    ) -> Boxed<'a, Vec<RenewOutcome>>;

    /// Takes back whatever the owner id has or wants.
    fn release<'a>(
        &'a self,
        release_request: &'a ReleaseRequest,
        limit: Duration,
    ) -> Boxed<'a, Result<ReleaseOutcome, LockError>>;

    /// Whether releases of that lock may go out in one batch with others.
    fn can_batch_release(&self, key: &LockKey) -> bool;

    /// As [`release`](Self::release), many in one go. One answer for each, in order.
    fn release_all<'a>(
        &'a self,
        release_requests: &'a [ReleaseRequest],
        limit: Duration,
    ) -> Boxed<'a, Vec<Result<ReleaseOutcome, LockError>>>;

    /// Whether some runtime failed to connect and none has succeeded since: then to wait for a
    /// connection comes first, and all else after it.
    fn seems_down(&self) -> bool;

    /// Whether the calling runtime can ask at once.
    fn is_connected(&self) -> bool;

    /// Waits until the calling runtime can ask, or asking cannot help; at most until then. What
    /// went wrong last is the error.
    fn wait_connected(&self, until: Moment) -> Boxed<'_, Result<(), LockError>>;

    /// Receives pushes for as long as it is polled.
    fn listen(&self) -> Boxed<'_, ()>;

    /// Whether a lease that is to be renewed lives as long as its guard by itself. Otherwise it
    /// takes a keeper.
    fn holds_without_renewal(&self) -> bool;
}

/// A handover of the lock to a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    pub(crate) token: FencingToken,
    pub(crate) received: Moment,
    pub(crate) lease: Duration,
    /// Until when it is valid; `None` when a renewal has to tell.
    pub(crate) until: Option<Moment>,
}

/// A message to one waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notification {
    Grant(Grant),
    /// It is the first in the queue, and the holder's lease ends then.
    Head {
        holder_expires_at: Moment,
    },
    /// It is the foremost waiter of this manager on its key now.
    First,
    /// Only asking can tell what happened meanwhile.
    Poll,
}

/// Where a backend delivers notifications.
pub(crate) trait NotificationSink: Send + Sync + 'static {
    /// Notifies the waiter with that owner id. Returns whether such a waiter exists.
    fn notify(&self, owner_id: OwnerId, notification: Notification) -> bool;

    /// Notifies all waiters whose owner ids begin like that: mostly one. Returns whether there is
    /// one.
    fn notify_by_short_id(&self, short: ShortId, notification: Notification) -> bool;

    /// Makes all waiters poll the server.
    fn poll_all(&self);
}

/// The connection on which a owner id was last sent, in a backend's own numbering.
pub(crate) type Origin = u64;

/// A lease to be extended.
#[derive(Clone, Debug)]
pub(crate) struct Renewal {
    pub(crate) key: LockKey,
    pub(crate) owner_id: OwnerId,
    pub(crate) ttl: Duration,
    pub(crate) lease_config: LeaseConfig,
}

/// The answer to [`Backend::acquire`].
#[derive(Clone, Debug)]
pub(crate) enum AcquireOutcome {
    Held {
        /// `None` in dialects that have none.
        token: Option<FencingToken>,
        sent: Moment,
        remaining: Duration,
    },
    Queued {
        rank: u64,
        holder_expiry: HolderExpiry,
        holder: Option<ObservedHolder>,
        /// How often to ask when no pushes come.
        poll: Option<Duration>,
    },
    Busy {
        holder_expiry: HolderExpiry,
        holder: Option<ObservedHolder>,
    },
    /// The lock is free, and there are more dead waiters before this one than the server looks at
    /// in one call: to be asked again at once.
    More,
}

/// Who was seen holding the lock, by a value of whatever dialect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedHolder {
    /// `None` for another library's holder.
    pub(crate) owner_id: Option<OwnerId>,
    /// `None` where it has none, or is not known.
    pub(crate) token: Option<FencingToken>,
    /// Tidied: it goes to errors and logs.
    pub(crate) label: Arc<str>,
    pub(crate) remaining: Option<Duration>,
}

impl ObservedHolder {
    /// The holder who wrote that value; `None` for an empty one, which nobody writes.
    #[cfg(feature = "redis")]
    pub(crate) fn by(value: &str, remaining: Option<Duration>) -> Option<Self> {
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

/// The answer to one [`Renewal`].
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
    /// What a renewal that compares the owner has said.
    #[cfg(feature = "redis")]
    pub(crate) fn if_ours(was_owner: bool, renewal: &Renewal, sent: Moment) -> Self {
        if !was_owner {
            return Self::NotOwner;
        }
        Self::Held {
            token: None,
            sent,
            remaining: renewal.ttl,
        }
    }

    /// Held for no longer than that.
    #[cfg(feature = "redis")]
    pub(crate) fn for_at_most(mut self, left: Duration) -> Self {
        if let Self::Held { remaining, .. } = &mut self {
            *remaining = left.min(*remaining);
        }
        self
    }

    /// The same error for each.
    #[cfg(feature = "redis")]
    pub(crate) fn all_failed(renewals: &[Renewal], error: &LockError) -> Vec<Self> {
        let failed = |_: &Renewal| Self::Failed(error.clone());
        renewals.iter().map(failed).collect()
    }
}

/// The answer to [`Backend::release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReleaseOutcome {
    pub(crate) was_owner: bool,
    pub(crate) server_ms: ServerMs,
    /// There were too many dead waiters for one call: to be sent again.
    pub(crate) more: bool,
}

impl ReleaseOutcome {
    /// The lock was released before, and nothing was sent.
    pub(crate) const fn already_released() -> Self {
        Self {
            was_owner: true,
            server_ms: ServerMs::LAST,
            more: false,
        }
    }

    /// Of a dialect that has no waiters.
    #[cfg(feature = "redis")]
    pub(crate) fn without_waiters(was_owner: bool, server_ms: ServerMs) -> Self {
        Self {
            was_owner,
            server_ms,
            more: false,
        }
    }
}
