//! Defines the operations of a backend and their outcomes.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::error::LockError;
use crate::telemetry::ServerAddress;
use lock_protocol::acquisition::{AcquireOutcome, RenewOutcome, SentAcquires};
use lock_protocol::cleanup::{ReleaseOutcome, ReleaseRequest};
use lock_protocol::clock::{Clock, Moment};
use lock_protocol::key::LockKey;
use lock_protocol::mailbox::Notification;
use lock_protocol::owner_id::{OwnerId, ShortId};
pub(crate) use lock_protocol::renewal::Renewal;

pub(crate) mod admin;
#[cfg(feature = "redis")]
pub(crate) mod call;
#[cfg(feature = "testing")]
pub(crate) mod faulty;
pub(crate) mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;
pub(crate) mod set;
pub(crate) mod url;

pub(crate) use self::admin::AdminBackend;
use self::set::SetOutcomes;

/// The name of the background worker's thread. Connections that open on it belong to the worker.
pub(crate) const WORKER_THREAD: &str = "lock-background";

/// A boxed future, so that a backend can be a trait object.
pub(crate) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Stores locks: on a server or in this process.
pub(crate) trait Backend: Send + Sync + 'static {
    fn clock(&self) -> Clock;

    /// Sends one acquire, or a poll under the same owner id. Takes at most `limit`.
    ///
    /// A waiting acquisition gets an entry in the queue. The backend records in `sent` what a
    /// cancel has to undo, before it sends anything: the future may be dropped or fail.
    fn acquire<'a>(
        &'a self,
        sent: &'a mut SentAcquires,
        limit: Duration,
    ) -> Boxed<'a, Result<AcquireOutcome, LockError>>;

    /// Sends the acquires of a set of locks, which all wait or all make one attempt. Takes at most `limit`.
    ///
    /// The locks are acquired in the given order, up to the first one that the caller does not get. Returns one
    /// outcome for each lock; `None` for a lock that the command has not acquired, because it ended before this
    /// lock or has released it. So a set of single attempts gets all locks, or one outcome that says why not.
    /// The backend records in each element what a cancel has to undo, as [`acquire`](Self::acquire) does.
    fn acquire_set<'a>(
        &'a self,
        sent: Vec<&'a mut SentAcquires>,
        limit: Duration,
    ) -> Boxed<'a, SetOutcomes> {
        Box::pin(set::acquire_each(self, sent, limit))
    }

    /// Releases the locks of a set, as [`release`](Self::release) does. Returns one outcome for each, in order.
    fn release_set<'a>(
        &'a self,
        release_requests: &'a [&'a ReleaseRequest],
        limit: Duration,
    ) -> Boxed<'a, Vec<Result<ReleaseOutcome, LockError>>> {
        Box::pin(set::release_each(self, release_requests, limit))
    }

    /// Renews many leases at once. Returns one outcome for each, in order.
    fn renew<'a>(
        &'a self,
        renewals: &'a [Renewal],
        limit: Duration,
    ) -> Boxed<'a, Vec<Result<RenewOutcome, LockError>>>;

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
        release_requests: &'a [&'a ReleaseRequest],
        limit: Duration,
    ) -> Boxed<'a, Vec<Result<ReleaseOutcome, LockError>>>;

    /// Returns the operations of operators.
    fn admin(&self) -> &dyn AdminBackend;

    /// Returns whether a runtime failed to connect and none has succeeded since. Callers then wait
    /// for a connection before they do anything else.
    fn seems_down(&self) -> bool;

    /// Returns whether the calling runtime has a connection that works.
    fn is_connected(&self) -> bool;

    /// Returns what is known about the connections, without IO.
    fn status(&self) -> BackendStatus;

    /// Returns whether waiters of the key get notifications, in its dialect. Subscribes if no waiter has needed it
    /// yet, which takes at most `limit`.
    fn notifies_waiters<'a>(&'a self, key: &'a LockKey, limit: Duration) -> Boxed<'a, bool>;

    /// Waits at most until `until` for a connection of the calling runtime. Returns the last error
    /// when time runs out, or at once when waiting cannot help.
    fn wait_connected(&self, until: Moment) -> Boxed<'_, Result<(), LockError>>;

    /// Waits until another server has become the primary. All leases have to be confirmed there.
    fn primary_changed(&self) -> Boxed<'_, ()> {
        Box::pin(std::future::pending())
    }

    /// Receives notifications for as long as the future is polled.
    fn listen(&self) -> Boxed<'_, ()>;

    /// Waits until no release is under way. A release may go on after its outcome is known.
    fn releases_end(&self) -> Boxed<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Returns the address of the server. A backend in this process has none.
    fn server(&self) -> Option<Arc<ServerAddress>> {
        None
    }

    /// Returns whether a lock lives as long as its guard without renewals. Any other backend needs
    /// a background worker.
    fn holds_without_renewal(&self) -> bool;

    /// Returns whether several holders may have a lock together. A quorum of servers has exclusive locks only.
    fn supports_shared_kinds(&self) -> bool {
        true
    }

    /// Returns whether a lock that a notification granted needs a renewal before it counts.
    fn confirms_grants(&self) -> bool {
        false
    }
}

/// What a backend knows about its connections.
#[derive(Clone, Debug)]
pub(crate) struct BackendStatus {
    /// Any connection for commands works.
    pub(crate) connected: bool,
    /// Notifications arrive.
    pub(crate) subscribed: bool,
    /// How long ago the youngest command with a reply was sent.
    pub(crate) last_reply: Option<Duration>,
    pub(crate) server_version: Option<Arc<str>>,
}

/// Where a backend delivers notifications.
pub(crate) trait NotificationSink: Send + Sync + 'static {
    /// Notifies the waiter with that owner id. Returns whether such a waiter exists.
    fn notify(&self, owner_id: OwnerId, notification: Notification) -> bool;

    /// Notifies all waiters whose owner ids begin with `short`; usually there is only one. Returns
    /// whether there is any.
    fn notify_by_short_id(&self, short: ShortId, notification: Notification) -> bool;

    /// Records a message that a lock of this key was released, in a dialect whose messages are for all waiters.
    /// Makes the first waiter of the key poll, and a guard that holds the lock renew. Returns whether there is such
    /// a waiter.
    fn notify_released(&self, key: &str) -> bool;

    /// Makes all waiters poll the server.
    fn poll_all(&self);
}
