//! Acquires a lock: drives an [`Acquisition`](lock_protocol::acquisition::Acquisition) over the
//! store. All decisions are in that state machine; this module does its IO.

use std::future::Future;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::error::LockError;
use crate::runtime::acquired::Acquired;
use crate::runtime::connecting::connect;
use crate::runtime::inner::ManagerInner;
use crate::runtime::pending::PendingAcquire;
use crate::runtime::records::AcquireRecord;
use crate::runtime::reentrancy;
use crate::store::{Call, Reach, Together, check_runtime};
use crate::sync::Mutex;
use crate::telemetry::{Caller, LockEvent, NotificationKind, NotificationUse};
use lock_protocol::acquisition::{
    AcquireConfig, AcquireFailure, AcquireOrigin, AcquireOutcome, AcquireResult, Action,
    Connectivity, LeaseKind, NextAction, Outage, Patience, QueueLimit, RenewReason,
};
use lock_protocol::cleanup::Validity;
use lock_protocol::clock::{Deadline, Moment};
use lock_protocol::key::LockKey;
use lock_protocol::kind::{Group, Kind};
use lock_protocol::lease::LeaseConfig;
use lock_protocol::local_queue::Peers;
use lock_protocol::mailbox::Notification;
use lock_protocol::op::OpKind;
use lock_protocol::renew::Renew;

mod downgrade;
mod ticket;

pub(crate) use self::downgrade::downgrade;
pub(crate) use self::ticket::{into_ticket, resume};

/// A future in a box, so that the caller's future does not contain the large state of an acquisition.
pub(crate) type BoxedAcquire = Pin<Box<dyn Future<Output = Result<Acquired, LockError>> + Send>>;

/// Makes one attempt, without an entry in the queue. `spent` is the part of the command timeout that
/// has passed. With an `outage_wait`, the attempt is made again while the server can't be reached.
///
/// # Cancel safety
/// Dropping the future releases a lock that was granted meanwhile.
pub(crate) fn try_acquire(
    inner: &Arc<ManagerInner>,
    key: LockKey,
    lease_config: LeaseConfig,
    outage_wait: Option<Duration>,
    spent: Duration,
    caller: Caller,
) -> Result<BoxedAcquire, LockError> {
    let started = inner.clock().now();
    let until = started.plus(inner.settings.command_timeout.saturating_sub(spent));
    let patience = Patience::OneAttempt { started, until };
    let outage_wait = outage_wait.map(|longest| longest.saturating_sub(spent));
    start(inner, key, lease_config, patience, outage_wait, caller)
}

/// Waits for the lock for at most `wait`, of which `spent` has passed. With an `outage_wait`, that is a part of it.
///
/// # Cancel safety
/// Dropping the future leaves the queue. A lock that was granted meanwhile goes to the next waiter.
pub(crate) fn acquire(
    inner: &Arc<ManagerInner>,
    key: LockKey,
    lease_config: LeaseConfig,
    waits: Waits,
    spent: Duration,
    caller: Caller,
) -> Result<BoxedAcquire, LockError> {
    let now = inner.clock().now();
    let started = now.minus(spent);
    let begins = waits.outage.map_or(started, |_| now);
    let deadline = begins.plus(waits.wait);
    let patience = Patience::Wait {
        started,
        deadline,
        max_queue: waits.max_queue,
    };
    let outage_wait = waits.outage.map(|longest| longest.saturating_sub(spent));
    start(inner, key, lease_config, patience, outage_wait, caller)
}

/// How long a request waits, and for how many others.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits {
    /// For a busy lock. Zero for one attempt.
    pub(crate) wait: Duration,
    pub(crate) max_queue: QueueLimit,
    /// For a server that can't be reached; `None` if that is a part of the wait.
    pub(crate) outage: Option<Duration>,
}

/// Returns how a lock with these settings stays held.
fn lease_kind(inner: &ManagerInner, lease_config: LeaseConfig) -> LeaseKind {
    let traits = inner.store.traits();
    if !traits.needs_worker && lease_config.renew != Renew::Never {
        LeaseKind::Endless
    } else if traits.confirms_grants {
        LeaseKind::Confirmed
    } else {
        LeaseKind::Renewed
    }
}

/// As [`check`], for a caller that began at `started`. Reports an error.
pub(crate) fn check_and_report(
    inner: &Arc<ManagerInner>,
    key: &LockKey,
    kind: Kind,
    started: Moment,
) -> Result<(), LockError> {
    check(inner, key, kind)
        .map_err(|error| failed(AcquireRecord::begin(inner, key, kind, started), error))
}

/// Checks whether the calling task may acquire the lock now.
fn check(inner: &Arc<ManagerInner>, key: &LockKey, kind: Kind) -> Result<(), LockError> {
    if inner.activity.is_closing() {
        return Err(LockError::ShuttingDown);
    }
    // The store of a server checks the runtime itself.
    if !inner.store.traits().needs_worker {
        check_runtime()?;
    }
    if reentrancy::would_deadlock(inner.manager_id(), key.as_str(), kind) {
        return Err(LockError::WouldDeadlock { key: key.text() });
    }
    Ok(())
}

fn start(
    inner: &Arc<ManagerInner>,
    key: LockKey,
    lease_config: LeaseConfig,
    patience: Patience,
    outage_wait: Option<Duration>,
    caller: Caller,
) -> Result<BoxedAcquire, LockError> {
    inner.check_process()?;
    let (Patience::OneAttempt { started, .. } | Patience::Wait { started, .. }) = patience;
    let mut record = AcquireRecord::begin(inner, &key, lease_config.kind, started);
    if let Some(record) = &mut record {
        record.set_caller(caller);
    }
    if let Err(error) = check(inner, &key, lease_config.kind) {
        return Err(failed(record, error));
    }
    let mut config = acquire_config(inner, key, lease_config, inner.acquire_label(), patience);
    config.outage_wait = outage_wait;
    Ok(if inner.store.reach() == Reach::Down {
        Box::pin(connect_first(Arc::clone(inner), config, record))
    } else {
        Box::pin(drive(PendingAcquire::new(inner, config, record)))
    })
}

pub(super) fn acquire_config(
    inner: &ManagerInner,
    key: LockKey,
    lease_config: LeaseConfig,
    label: Arc<str>,
    patience: Patience,
) -> AcquireConfig {
    AcquireConfig {
        key,
        lease_config,
        label,
        patience,
        outage_wait: None,
        origin: AcquireOrigin::New,
        lease_kind: lease_kind(inner, lease_config),
        command_timeout: inner.settings.command_timeout,
        retry_interval: inner.settings.retry_interval,
    }
}

/// Waits for a connection before anything is registered or sent.
async fn connect_first(
    inner: Arc<ManagerInner>,
    mut config: AcquireConfig,
    record: Option<Box<AcquireRecord>>,
) -> Result<Acquired, LockError> {
    let since = inner.clock().now();
    let connecting = match connect(&inner, config.connects_until(since)).await {
        Ok(connecting) => connecting,
        Err(error) => return Err(failed(record, error)),
    };
    config.on_connected(since, inner.clock().now());
    let pending = PendingAcquire::new(&inner, config, record);
    // The acquisition counts itself.
    drop(connecting);
    Box::pin(drive(pending)).await
}

/// Reports an acquire that failed before it began.
pub(super) fn failed(record: Option<Box<AcquireRecord>>, error: LockError) -> LockError {
    if let Some(mut record) = record {
        record.failed(&error);
    }
    error
}

/// Performs an action. A macro: as functions, this and the acquire would enlarge the future of each waiter.
macro_rules! perform {
    ($pending:ident, $action:ident) => {
        match $action {
            Action::Acquire { limit } => {
                $pending.enter_local_queue();
                let result = {
                    let mut deadline = Deadline::after($pending.inner.clock(), limit);
                    if let Some(pause) = $pending.pause() {
                        deadline = Box::pin(pause_before(pause, deadline)).await;
                    }
                    let mut call = Call::new(OpKind::Acquire($pending.acquisition.sent_mut()));
                    let store = &$pending.inner.store;
                    store.call(&mut [&mut call], Together::Each, deadline).await;
                    call.acquired()
                };
                $pending.on_acquire_result(result)
            }
            Action::Renew { limit, reason } => Box::pin($pending.renew(limit, reason)).await,
            Action::Cancel { limit } => Box::pin($pending.cancel(limit)).await,
            Action::Wait { until } => $pending.wait(until).await,
            Action::Reconnect { until } => Box::pin($pending.reconnect(until)).await,
            Action::StartOver => $pending.start_over(),
        }
    };
}

/// Pauses, and returns the deadline: kept here, it doesn't enlarge the future of each waiter.
pub(super) async fn pause_before(pause: Duration, deadline: Deadline) -> Deadline {
    tokio::time::sleep(pause).await;
    deadline
}

/// Performs the actions of the acquisition until it is done.
///
/// Each waiter keeps this future for its whole wait. So actions that most acquisitions do not need are
/// in boxes of their own.
#[expect(
    clippy::manual_async_fn,
    reason = "the future of an `async fn` has the space of its arguments twice"
)]
fn drive(
    mut pending: PendingAcquire,
) -> impl Future<Output = Result<Acquired, LockError>> + Send + use<> {
    async move {
        // A close that came before the waiter was registered did not notify it.
        if pending.is_refused() {
            return pending.finish(AcquireResult::Failed(AcquireFailure::ShuttingDown));
        }
        let mut next = pending.acquisition.on_start(pending.now());
        loop {
            let action = match next.split() {
                ControlFlow::Continue(action) => action,
                ControlFlow::Break(result) => return pending.finish(result),
            };
            next = perform!(pending, action);
        }
    }
}

/// As [`drive`], for an acquisition whose first command was one with others. `action` is the next one. Records in
/// `outage`, if the set has it, what is left of its time for outages.
pub(super) async fn go_on(
    mut pending: PendingAcquire,
    mut action: Action,
    outage: Option<Arc<Mutex<Outage>>>,
) -> Result<Acquired, LockError> {
    loop {
        if let (Some(known), Some(left)) = (&outage, pending.acquisition.outage()) {
            *known.lock() = left;
        }
        action = match perform!(pending, action).split() {
            ControlFlow::Continue(next) => next,
            ControlFlow::Break(result) => {
                if let (Some(known), Some(left)) = (&outage, pending.acquisition.outage()) {
                    *known.lock() = left;
                }
                return pending.finish(result);
            }
        };
    }
}

/// Performs the actions of the acquisition until it is done. The caller makes something else of the result than a guard.
async fn drive_to_result(pending: &mut PendingAcquire) -> AcquireResult<LockError> {
    let mut next = pending.acquisition.on_start(pending.now());
    loop {
        next = match next.split() {
            ControlFlow::Continue(action) => perform!(pending, action),
            ControlFlow::Break(result) => return result,
        };
    }
}

/// What ended the wait for a connection.
enum Woken {
    Notified(Notification),
    Connected(Result<(), LockError>),
}

impl PendingAcquire {
    pub(super) fn now(&self) -> Moment {
        self.inner.clock().now()
    }

    fn connectivity(&self) -> Connectivity {
        if self.inner.store.reach() == Reach::Connected {
            Connectivity::Up
        } else {
            Connectivity::Down
        }
    }

    /// Enters the local queue before a command, in a dialect that announces releases: a message may arrive before
    /// the reply.
    pub(super) fn enter_local_queue(&mut self) {
        // An attempt that only waits for the server has no place in the queue.
        let waits = self.acquisition.sent().waits_until.is_some();
        if waits && self.key().dialect().notifies_all_waiters() {
            self.peers.enter(None, None);
        }
    }

    /// Returns how long to pause before the first command, so that other clients have their chance after a release that
    /// they were notified of.
    pub(super) fn pause(&self) -> Option<Duration> {
        let is_new = !self.acquisition.sent().was_sent();
        if is_new && self.key().dialect().notifies_all_waiters() {
            let notifications = &self.inner.notifications;
            notifications.pause_before_acquire(self.key(), self.now())
        } else {
            None
        }
    }

    /// Handles the result of an acquire.
    pub(super) fn on_acquire_result(
        &mut self,
        result: Result<AcquireOutcome, LockError>,
    ) -> NextAction<LockError> {
        let now = self.now();
        match result {
            Ok(mut outcome) => {
                if self.key().dialect().notifies_all_waiters() {
                    self.peers.on_reply();
                }
                self.inner.recognize_holder(&mut outcome);
                self.report_busy(&outcome);
                self.acquisition.on_reply(outcome, now, &mut self.peers)
            }
            Err(error) => {
                let connectivity = self.connectivity();
                self.acquisition.on_no_reply(error, connectivity, now)
            }
        }
    }

    async fn renew(&mut self, limit: Duration, reason: RenewReason) -> NextAction<LockError> {
        if reason == RenewReason::Implausible {
            self.report_notification(NotificationKind::Grant, NotificationUse::Refused);
        }
        let renewal = self.acquisition.sent().renewal(self.now());
        let result = self.inner.store.renew(&renewal, limit).await;
        let (now, connectivity) = (self.now(), self.connectivity());
        self.acquisition
            .on_renew_reply(result, connectivity, now, &mut self.peers)
    }

    async fn cancel(&mut self, limit: Duration) -> NextAction<LockError> {
        let request = self.acquisition.sent().release_request();
        let result = self.inner.release(request, Validity::Lost, limit).await;
        let now = self.now();
        self.acquisition.on_cancel_reply(result.ok().as_ref(), now)
    }

    async fn wait(&mut self, until: Moment) -> NextAction<LockError> {
        let pause = tokio::time::sleep(until.since(self.now()));
        let notification = if let Some(slot) = &self.peers.slot {
            tokio::select! {
                biased;
                notification = slot.next() => Some(notification),
                () = pause => None,
            }
        } else {
            pause.await;
            None
        };
        let now = self.now();
        match notification {
            Some(notification) => self.on_notification(notification, now),
            None => self.acquisition.on_timeout(now),
        }
    }

    async fn reconnect(&mut self, until: Moment) -> NextAction<LockError> {
        let connected = self.inner.store.wait_connected(until);
        let woken = match &self.peers.slot {
            Some(slot) => tokio::select! {
                biased;
                notification = slot.next() => Woken::Notified(notification),
                result = connected => Woken::Connected(result),
            },
            None => Woken::Connected(connected.await),
        };
        let now = self.now();
        match woken {
            Woken::Notified(notification) => self.on_notification(notification, now),
            Woken::Connected(result) => self.acquisition.on_reconnect(result, now),
        }
    }

    fn on_notification(
        &mut self,
        notification: Notification,
        now: Moment,
    ) -> NextAction<LockError> {
        let kind = match notification {
            Notification::Grant(_) => Some(NotificationKind::Grant),
            Notification::Head { .. } => Some(NotificationKind::Head),
            Notification::Released => Some(NotificationKind::Released),
            Notification::First | Notification::Poll | Notification::ShuttingDown => None,
        };
        let next = self
            .acquisition
            .on_notification(notification, now, &mut self.peers);
        let is_refused = matches!(
            next,
            NextAction::Perform(Action::Renew {
                reason: RenewReason::Implausible,
                ..
            })
        );
        if let Some(kind) = kind.filter(|_| !is_refused && self.inner.reporter.listens()) {
            self.report_notification(kind, NotificationUse::Used);
        }
        next
    }

    fn report_notification(&self, kind: NotificationKind, outcome: NotificationUse) {
        let event = LockEvent::NotificationReceived { kind, outcome };
        self.inner.reporter.emit(&event);
    }

    /// Reports a waiter that found the lock busy.
    fn report_busy(&mut self, outcome: &AcquireOutcome) {
        let Some(record) = &mut self.record else {
            return;
        };
        let sent = self.acquisition.sent();
        if sent.waits_until.is_none() {
            return;
        }
        let holder = match outcome {
            AcquireOutcome::Queued { rank, holder, .. } | AcquireOutcome::Full { rank, holder } => {
                record.on_busy(Some(*rank));
                holder
            }
            AcquireOutcome::Busy { holder, .. } => {
                record.on_busy(None);
                holder
            }
            _ => return,
        };
        let held = holder.as_ref().and_then(|holder| holder.kind.group());
        if let (Some(Group::Permits(permits)), Some(Group::Permits(held))) =
            (sent.lease_config.kind.group(), held)
            && permits != held
        {
            record.on_mismatch(permits, held);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_protocol::acquisition::Acquisition;

    fn output_size<A, T>(_function: impl FnOnce(A) -> T) -> usize {
        size_of::<T>()
    }

    /// The target of the bench `memory` is 2 KiB for a waiter, with its task and its queue entry.
    #[test]
    fn memory_of_an_acquisition_is_bounded() {
        let acquisition = size_of::<Acquisition<LockError>>();
        // Eight of them say when the holder was seen, so that the error of a timeout is as young as the timeout.
        assert!(acquisition <= 664, "{acquisition}");
        let future = output_size(drive);
        // Eight of them are for the record of telemetry, which is in a box.
        assert!(future <= 992, "{future}");
    }
}
