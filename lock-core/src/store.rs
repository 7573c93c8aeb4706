//! The seam between the runtime and what keeps the locks: a server, several servers, or this process.
//!
//! A caller puts an operation into a [`Call`], and the store writes the outcome into it. So a new operation needs
//! a new kind of [`Op`], but no new method in every store.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::error::{InvalidSetting, LockError};
use crate::sync::caught;
use crate::telemetry::{PanicSource, Reporter, ServerAddress};
use lock_protocol::acquisition::{AcquireOutcome, RenewOutcome};
use lock_protocol::cleanup::{ReleaseOutcome, ReleaseRequest};
use lock_protocol::clock::{Clock, Deadline, Moment};
#[cfg(feature = "redis")]
use lock_protocol::codec::Lane;
#[cfg(feature = "cluster")]
use lock_protocol::codec::OpState;
use lock_protocol::dialect::{Dialect, InvalidDialectReason};
use lock_protocol::inspection::{
    InspectDetail, InspectReply, ReadTime, ScanPart, ScanPlace, ScanRequest,
};
use lock_protocol::key::LockKey;
use lock_protocol::lock_state::{ForceReply, ForceRequest};
use lock_protocol::mailbox::Notification;
pub(crate) use lock_protocol::op::Renewal;
use lock_protocol::op::{Expiry, Op, OpKind, Outcome};
use lock_protocol::owner_id::{OwnerId, ShortId};
#[cfg(feature = "redis")]
use lock_protocol::resp::ScriptsBy;

/// The name of the background worker's thread. Connections that open on it belong to the worker.
pub(crate) const WORKER_THREAD: &str = "lock-background";

/// The pause before something is repeated after a panic, because the cause may repeat at once.
pub(crate) const AFTER_PANIC: Duration = Duration::from_millis(20);

/// A boxed future, so that a store can be a trait object.
pub(crate) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Keeps locks.
pub(crate) trait Store: Send + Sync + 'static {
    /// Returns what the store can do. It never changes.
    fn traits(&self) -> &StoreTraits;

    /// Runs the calls, which are all of one kind, and writes an outcome into each. Ends by the deadline. At a quorum, a
    /// scan may take that time at each server, and a force release four times.
    ///
    /// An acquire records what a cancel has to undo before anything is sent. So after any end, also of a dropped
    /// future, its [`SentAcquires`](lock_protocol::acquisition::SentAcquires) says what may be on the server. Only in a
    /// set may an acquire be left without an outcome: the calls ended before it, or it was released again.
    fn call<'a, 'c: 'a, 'o: 'c>(
        &'a self,
        calls: &'a mut [&'c mut Call<'o>],
        together: Together,
        deadline: Deadline,
    ) -> Boxed<'a, ()>;

    /// Releases without waiting, also outside of a runtime. Only for a store that [needs no
    /// worker](StoreTraits::needs_worker); with one, the worker releases.
    fn release_now(&self, _request: &ReleaseRequest) {}

    /// Returns whether releases of this lock may go out together with others: not if they run alone on a connection, or
    /// must not go out twice, so that a break leaves one of them unconfirmed and not the whole batch. If one of a batch
    /// may not, a server gets all of them one by one. So the background worker sends those in calls of their own.
    fn joins_batches(&self, _key: &LockKey) -> bool {
        true
    }

    /// Returns whether calls from this runtime would reach a server, without IO. Each acquire asks.
    fn reach(&self) -> Reach;

    /// Returns what is known about the connections, without IO.
    fn status(&self) -> StoreStatus;

    /// Returns the address of the server, for telemetry. A store in this process has none.
    fn server(&self) -> Option<Arc<ServerAddress>> {
        None
    }

    /// Returns the node that a scan reads at this place. `None` where a scan has no other node to go on with, and behind
    /// the last one.
    fn scanned_node(&self, _at: Option<&ScanPlace>) -> Option<ScannedNode> {
        None
    }

    /// Returns whether waiters of the key are notified, in its dialect. Subscribes if no waiter has needed it yet,
    /// which takes at most `limit`.
    fn notifies<'a>(&'a self, key: &'a LockKey, limit: Duration) -> Boxed<'a, bool>;

    /// Waits at most until `until` for a connection of the calling runtime. Returns the last error
    /// when time runs out, or at once when waiting cannot help.
    fn wait_connected(&self, until: Moment) -> Boxed<'_, Result<(), LockError>>;

    /// Tells the runtime of the background worker, before anything runs in it.
    fn driven_by(&self, _worker: &Handle) {}

    /// Receives messages, and follows the servers, for as long as the future is polled.
    fn listen(&self) -> Boxed<'_, ()> {
        Box::pin(std::future::pending())
    }

    /// Waits until no release is under way. A release may go on after its outcome is known.
    fn drained(&self) -> Boxed<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// A node of a cluster, as a scan sees it.
#[derive(Debug)]
pub(crate) struct ScannedNode {
    pub(crate) address: String,
    /// Where the next node begins, or the end.
    pub(crate) next: ScanPlace,
}

/// What a store can do.
#[derive(Clone, Debug)]
pub(crate) struct StoreTraits {
    pub(crate) clock: Clock,
    /// Leases end, so a background worker has to renew them. Without a worker, a lock lives as long as its guard.
    pub(crate) needs_worker: bool,
    /// One server has the whole lock. A quorum has plain exclusive locks only: no shared kinds, no queue, no mark that
    /// work is done, and no exchange of an owner.
    pub(crate) one_server_per_lock: bool,
    /// A lock that a notification granted needs a renewal before it counts.
    pub(crate) confirms_grants: bool,
    pub(crate) dialects: Dialects,
    /// The longest ttl of a lock. At a quorum it is the quarantine: a server that restarted counts again only once every
    /// lease it may have forgotten has ended. `None` if there is no limit.
    pub(crate) longest_ttl: Option<Duration>,
}

/// The dialects of a store's locks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Dialects {
    All,
    Some {
        has: fn(Dialect) -> bool,
        /// Why it doesn't have the others.
        others: InvalidDialectReason,
    },
}

impl StoreTraits {
    /// A store that has locks of all dialects and kinds on a server.
    pub(crate) const SERVER: Self = Self {
        clock: Clock::System,
        needs_worker: true,
        one_server_per_lock: true,
        confirms_grants: false,
        dialects: Dialects::All,
        longest_ttl: None,
    };

    /// Checks that the store has locks in this dialect.
    pub(crate) fn check_dialect(&self, dialect: Dialect) -> Result<(), InvalidDialectReason> {
        match self.dialects {
            Dialects::Some { has, others } if !has(dialect) => Err(others),
            Dialects::Some { .. } | Dialects::All => Ok(()),
        }
    }

    /// Checks that waiters of this dialect have a queue on the store.
    pub(crate) fn check_queue(&self, dialect: Dialect) -> Result<(), InvalidDialectReason> {
        if dialect.capabilities().is_fair() && self.one_server_per_lock {
            Ok(())
        } else {
            Err(InvalidDialectReason::NoQueue)
        }
    }

    /// Checks that a lease may last this long.
    pub(crate) fn check_ttl(&self, ttl: Duration) -> Result<(), LockError> {
        let Some(quarantine) = self.longest_ttl.filter(|longest| ttl > *longest) else {
            return Ok(());
        };
        Err(LockError::Invalid(InvalidSetting::Manager {
            setting: "quarantine",
            value: format!("{quarantine:?}").into(),
            advice: format!("use at least the ttl, which is {ttl:?}, or a shorter ttl").into(),
        }))
    }
}

/// How the calls of one batch depend on each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Together {
    /// Not at all.
    Each,
    /// They acquire the locks of a set that waits: in this order, up to the first lock that the caller doesn't get.
    InOrder,
    /// They acquire the locks of a set in one attempt: all of them, or the outcome of one says why not. The others have
    /// no outcome then, and the caller cancels them: earlier locks may still be held.
    AllOrNone,
}

/// Whether calls would reach a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The calling runtime has a connection that works.
    Connected,
    /// It has none, but the latest attempt to connect, if there was any, did not fail.
    NotYet,
    /// It has none, and the latest attempt of any runtime to connect has failed. Callers then wait for a connection
    /// before they do anything else.
    Down,
}

/// Why the waiters of a manager poll, rather than being notified when it is their turn. Part of
/// [`Health`](crate::health::Health).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PollingReason {
    /// The manager's [`Dialect`](crate::dialect::Dialect) has no notifications.
    Dialect,
    /// The manager uses a quorum of servers, which has no queue of waiters.
    Quorum,
    /// The URL says `protocol=2`, and connections in RESP2 get no notifications.
    ProtocolOfUrl,
    /// The server refuses RESP3, and connections in RESP2 get no notifications.
    NoResp3,
    /// The user lacks the right to run `INFO`, which shows the server's run id. Without it, a notification may come
    /// from another server process.
    InfoDenied,
    /// The server doesn't show its run id in `INFO`, or doesn't answer to `INFO`.
    NoRunId,
    /// The user lacks the right to subscribe, or the right to the channel.
    SubscriptionDenied,
    /// The server refuses the subscription for another reason, for example because it has no such command.
    SubscriptionRefused,
    /// The connection that receives notifications is broken or can't be made. The manager tries again.
    Disconnected,
}

impl fmt::Display for PollingReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dialect => "the dialect has no notifications; use `Dialect::Native` for them",
            Self::Quorum => "a quorum of servers has no notifications",
            Self::ProtocolOfUrl => {
                "connections in RESP2 get no notifications; remove `protocol=2` from the URL"
            }
            Self::NoResp3 => {
                "the server refuses RESP3, and connections in RESP2 get no notifications; let it accept `HELLO 3`"
            }
            Self::InfoDenied => "the user may not run INFO, which shows the run id; grant `+info`",
            Self::NoRunId => "the server doesn't show its run id; use one whose INFO has a `run_id`",
            Self::SubscriptionDenied => {
                "the user may not subscribe; grant `+subscribe`, `+ssubscribe` in a cluster, and the channels"
            }
            Self::SubscriptionRefused => {
                "the server refuses the subscription; the event `lock.notifications_off` has its reply"
            }
            Self::Disconnected => {
                "the connection that receives notifications is broken; the event `lock.notifications_off` or \
                 `lock.disconnected` has the error"
            }
        })
    }
}

/// What a store knows about its connections.
#[derive(Clone, Debug)]
pub(crate) struct StoreStatus {
    /// Any connection for commands works.
    pub(crate) connected: bool,
    /// There has been such a connection.
    pub(crate) was_connected: bool,
    /// Notifications arrive.
    pub(crate) subscribed: bool,
    /// Why notifications don't arrive, as far as the store knows.
    pub(crate) polling: Option<PollingReason>,
    /// How long ago the youngest command with a reply was sent.
    pub(crate) last_reply: Option<Duration>,
    pub(crate) server_version: Option<Arc<str>>,
}

/// Where a store delivers notifications.
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

    /// Makes all leases be renewed soon: another server is the primary, and has to confirm them.
    fn renew_all(&self);
}

/// One operation on its way. The caller keeps it, so a caller that stops waiting finds in it what was sent.
pub(crate) struct Call<'a> {
    pub(crate) op: Op<'a>,
    /// `None` until it is known what became of it.
    pub(crate) outcome: Option<Result<Outcome, LockError>>,
    #[cfg(feature = "redis")]
    pub(crate) run: Running,
}

/// What a server's runner keeps of a call.
#[cfg(feature = "redis")]
pub(crate) struct Running {
    /// How its commands name their scripts.
    pub(crate) scripts: ScriptsBy,
    /// How many commands it has in the exchange that is under way. A `u32`, to keep calls small: each waiter has one.
    pub(crate) commands: u32,
    pub(crate) lane: Lane,
    /// Whether messages on the channel of its key arrive, and the channel. Set once the call has waited for that. In a
    /// box, because few calls do.
    pub(crate) channel: Option<Box<(bool, Arc<str>)>>,
}

#[cfg(feature = "redis")]
impl Default for Running {
    fn default() -> Self {
        Self {
            scripts: ScriptsBy::Hash,
            commands: 0,
            lane: Lane::Shared,
            channel: None,
        }
    }
}

impl<'a> Call<'a> {
    pub(crate) fn new(kind: OpKind<'a>) -> Self {
        Self {
            op: Op::new(kind),
            outcome: None,
            #[cfg(feature = "redis")]
            run: Running::default(),
        }
    }

    /// Resets the call, to send it to another server. What an acquire has recorded stays.
    #[cfg(feature = "cluster")]
    pub(crate) fn begin_again(&mut self) {
        self.op.state = OpState::New;
        self.outcome = None;
        self.run = Running::default();
    }

    /// A renewal that writes the expiry only where needed.
    pub(crate) fn renew(renewal: &'a Renewal) -> Self {
        Self::new(OpKind::Renew(renewal, Expiry::WhereNeeded))
    }

    /// Returns whether the caller has the lock.
    pub(crate) fn is_held(&self) -> bool {
        matches!(
            self.outcome,
            Some(Ok(Outcome::Acquired(AcquireOutcome::Held { .. })))
        )
    }

    /// Returns the error, if the call has failed.
    pub(crate) fn error(&self) -> Option<&LockError> {
        self.outcome.as_ref()?.as_ref().err()
    }

    pub(crate) fn acquired(self) -> Result<AcquireOutcome, LockError> {
        match self.outcome {
            Some(Ok(Outcome::Acquired(outcome))) => Ok(outcome),
            other => Err(error_of(other)),
        }
    }

    pub(crate) fn renewed(self) -> Result<RenewOutcome, LockError> {
        match self.outcome {
            Some(Ok(Outcome::Renewed(outcome))) => Ok(outcome),
            other => Err(error_of(other)),
        }
    }

    pub(crate) fn released(self) -> Result<ReleaseOutcome, LockError> {
        match self.outcome {
            Some(Ok(Outcome::Released(outcome))) => Ok(outcome),
            other => Err(error_of(other)),
        }
    }

    pub(crate) fn inspected(self) -> Result<InspectReply, LockError> {
        match self.outcome {
            Some(Ok(Outcome::Inspected(found))) => Ok(*found),
            other => Err(error_of(other)),
        }
    }

    pub(crate) fn forced(self) -> Result<(ReadTime, ForceReply), LockError> {
        match self.outcome {
            Some(Ok(Outcome::Forced(time, reply))) => Ok((time, *reply)),
            other => Err(error_of(other)),
        }
    }

    pub(crate) fn scanned(self) -> Result<ScanPart, LockError> {
        match self.outcome {
            Some(Ok(Outcome::Scanned(part))) => Ok(*part),
            other => Err(error_of(other)),
        }
    }
}

/// Returns the error of a call without the expected outcome. With none at all, it was not sent in time.
fn error_of(outcome: Option<Result<Outcome, LockError>>) -> LockError {
    match outcome {
        Some(Err(error)) => error,
        Some(Ok(_)) => LockError::unreadable(),
        None => LockError::unsent(),
    }
}

/// Checks for a tokio runtime: waiting needs its timers, and a server connection its sockets.
pub(crate) fn check_runtime() -> Result<(), LockError> {
    Handle::try_current().map_or(Err(LockError::NoRuntime), |_| Ok(()))
}

/// Ends all calls with this error.
pub(crate) fn fail_all(calls: &mut [&mut Call<'_>], error: &LockError) {
    for call in calls {
        call.outcome = Some(Err(error.clone()));
    }
}

/// Returns whether the set ends with this part, because one of its locks was not acquired. In a single attempt, also
/// removes the outcomes of earlier parts, so that the caller releases their locks.
pub(crate) fn ends_set(
    calls: &mut [&mut Call<'_>],
    part: Range<usize>,
    together: Together,
) -> bool {
    let begins_at = part.start;
    if together == Together::Each || calls[part].iter().all(|call| call.is_held()) {
        return false;
    }
    if together == Together::AllOrNone {
        for call in &mut calls[..begins_at] {
            call.outcome = None;
        }
    }
    true
}

/// Runs one part of [`Store::listen`]. Counts a panic in it, such as one in a tracing subscriber, and starts the part
/// again; the others go on.
pub(crate) async fn supervised<'a>(reporter: &Reporter, part: impl Fn() -> Boxed<'a, ()>) {
    while let Err(payload) = caught(part()).await {
        reporter.panicked(PanicSource::Worker, payload);
        tokio::time::sleep(AFTER_PANIC).await;
    }
}

/// One method for each operation, for the runtime and the operators.
impl dyn Store {
    pub(crate) fn clock(&self) -> Clock {
        self.traits().clock
    }

    /// Runs one operation within `limit`.
    async fn run<'o>(&self, kind: OpKind<'o>, limit: Duration) -> Call<'o> {
        let mut call = Call::new(kind);
        let deadline = Deadline::after(self.clock(), limit);
        self.call(&mut [&mut call], Together::Each, deadline).await;
        call
    }

    async fn run_all(&self, calls: &mut [Call<'_>], limit: Duration) {
        let deadline = Deadline::after(self.clock(), limit);
        let mut calls: Vec<_> = calls.iter_mut().collect();
        self.call(&mut calls, Together::Each, deadline).await;
    }

    /// Renews one lease.
    pub(crate) async fn renew(
        &self,
        renewal: &Renewal,
        limit: Duration,
    ) -> Result<RenewOutcome, LockError> {
        let kind = OpKind::Renew(renewal, Expiry::WhereNeeded);
        self.run(kind, limit).await.renewed()
    }

    /// Renews leases together. Returns one outcome for each, in order.
    pub(crate) async fn renew_all(
        &self,
        renewals: &[Renewal],
        limit: Duration,
    ) -> Vec<Result<RenewOutcome, LockError>> {
        let mut calls: Vec<_> = renewals.iter().map(Call::renew).collect();
        self.run_all(&mut calls, limit).await;
        calls.into_iter().map(Call::renewed).collect()
    }

    /// Releases the lock of an owner id, and removes its queue entries.
    pub(crate) async fn release(
        &self,
        request: &ReleaseRequest,
        limit: Duration,
    ) -> Result<ReleaseOutcome, LockError> {
        self.run(OpKind::Release(request), limit).await.released()
    }

    /// Releases locks together. Returns one outcome for each, in order.
    pub(crate) async fn release_all(
        &self,
        requests: &[&ReleaseRequest],
        limit: Duration,
    ) -> Vec<Result<ReleaseOutcome, LockError>> {
        let releases = requests.iter().map(|request| OpKind::Release(request));
        let mut calls: Vec<_> = releases.map(Call::new).collect();
        self.run_all(&mut calls, limit).await;
        calls.into_iter().map(Call::released).collect()
    }

    /// Reads a lock and its first waiters, and changes nothing.
    pub(crate) async fn inspect(
        &self,
        key: &LockKey,
        detail: InspectDetail,
        limit: Duration,
    ) -> Result<InspectReply, LockError> {
        let kind = OpKind::Inspect(key, detail);
        self.run(kind, limit).await.inspected()
    }

    /// Takes a lock from its holder.
    pub(crate) async fn force_release(
        &self,
        request: &ForceRequest,
        limit: Duration,
    ) -> Result<(ReadTime, ForceReply), LockError> {
        self.run(OpKind::Force(request), limit).await.forced()
    }

    /// Finds locks, and reads them.
    pub(crate) async fn scan(
        &self,
        request: &ScanRequest,
        limit: Duration,
    ) -> Result<ScanPart, LockError> {
        self.run(OpKind::Scan(request), limit).await.scanned()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// The other part runs on meanwhile: a subscription must not end because a Sentinel's reply made another part panic.
    #[tokio::test(start_paused = true)]
    async fn part_begins_again_after_a_panic_and_the_others_go_on() {
        let (begun, others) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let reporter = Reporter::default();
        let panicking = || -> Boxed<'_, ()> {
            Box::pin(async {
                let before = begun.fetch_add(1, Ordering::Relaxed);
                assert!(before > 1, "the first two times panic");
            })
        };
        let other = || -> Boxed<'_, ()> {
            Box::pin(async {
                others.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_secs(60)).await;
            })
        };
        tokio::join!(
            supervised(&reporter, panicking),
            supervised(&reporter, other)
        );
        assert_eq!(begun.into_inner(), 3);
        assert_eq!(others.into_inner(), 1, "it was not disturbed");
        assert_eq!(reporter.read().panics, 2);
    }
}
