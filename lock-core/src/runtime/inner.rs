//! The state that a manager shares with its requests and guards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::config::Settings;
use crate::error::{InvalidTicketReason, LockError, ShutdownIncomplete};
use crate::runtime::activity::Activity;
use crate::runtime::background::BackgroundWorker;
#[cfg(feature = "redis")]
use crate::runtime::background::FirstUse;
use crate::runtime::held_lock::HeldLock;
use crate::runtime::notifications::Notifications;
use crate::runtime::observing::Observing;
use crate::runtime::overrides::CurrentOverrides;
use crate::runtime::paces::Paces;
use crate::runtime::probe::Probe;
use crate::runtime::tracked::TrackedLocks;
use crate::store::{Call, Store, Together, check_runtime};
use crate::sync::Process;
use crate::telemetry::Reporter;
use lock_protocol::acquisition::{AcquireOutcome, RenewOutcome};
use lock_protocol::cleanup::{
    AwaitedRelease, AwaitedStep, Cleanup, ReleaseOutcome, ReleaseRequest, Validity,
};
use lock_protocol::clock::{Clock, Deadline};
use lock_protocol::dialect::Dialect;
use lock_protocol::key::LockKey;
use lock_protocol::loss::LossReason;
use lock_protocol::op::OpKind;
use lock_protocol::owner_id::OwnerId;

/// Shared by all clones of a manager, its guards and its waiters.
pub(crate) struct ManagerInner {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) notifications: Arc<Notifications>,
    pub(crate) settings: Settings,
    pub(crate) reporter: Arc<Reporter>,
    pub(crate) activity: Activity,
    pub(crate) probe: Probe,
    pub(crate) observing: Observing,
    /// `None` if the store holds locks without renewals.
    worker: Option<BackgroundWorker>,
    /// The held locks, where no background worker has them.
    pub(crate) tracked: TrackedLocks,
    pub(crate) overrides: CurrentOverrides,
    pub(crate) paces: Paces,
    /// Called with each lock that is tracked without a background worker.
    #[cfg(feature = "testing")]
    pub(crate) on_tracked: std::sync::OnceLock<OnTracked>,
    process: Process,
}

/// What a manager with faults does with a new held lock.
#[cfg(feature = "testing")]
pub(crate) type OnTracked = Box<dyn Fn(&Arc<HeldLock>) + Send + Sync>;

impl ManagerInner {
    /// Creates the state for a store that holds locks without renewals.
    pub(crate) fn without_worker(
        store: Arc<dyn Store>,
        notifications: Arc<Notifications>,
        reporter: Arc<Reporter>,
        mut settings: Settings,
    ) -> Self {
        #[cfg(feature = "redis")]
        settings.forget_secrets();
        let overrides = std::mem::take(&mut settings.overrides);
        let now = store.clock().now();
        Self {
            overrides: CurrentOverrides::new(overrides, now),
            store,
            notifications,
            settings,
            reporter,
            activity: Activity::default(),
            paces: Paces::default(),
            probe: Probe::default(),
            observing: Observing::default(),
            worker: None,
            tracked: TrackedLocks::default(),
            #[cfg(feature = "testing")]
            on_tracked: std::sync::OnceLock::new(),
            process: Process::current(),
        }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn with_worker(
        store: Arc<dyn Store>,
        notifications: Arc<Notifications>,
        reporter: Arc<Reporter>,
        settings: Settings,
        first_use: FirstUse,
    ) -> Result<Self, LockError> {
        let worker = BackgroundWorker::start(
            Arc::clone(&store),
            Arc::clone(&notifications),
            Arc::clone(&reporter),
            settings.command_timeout,
            first_use,
        )?;
        Ok(Self {
            worker: Some(worker),
            ..Self::without_worker(store, notifications, reporter, settings)
        })
    }

    pub(crate) fn clock(&self) -> Clock {
        self.store.clock()
    }

    /// Returns an error in a forked child, which has neither the background thread nor connections.
    pub(crate) fn check_process(&self) -> Result<(), LockError> {
        if self.process.is_current() {
            Ok(())
        } else {
            Err(LockError::Forked)
        }
    }

    /// Adds to the error of a server that it was never reached, if that is so.
    pub(crate) fn explained(&self, error: LockError) -> LockError {
        if error.is_retryable() && !self.store.status().was_connected {
            return error.with_detail("the server has not been reached yet");
        }
        error
    }

    /// Returns the label of an acquisition of the calling task.
    pub(crate) fn acquire_label(&self) -> Arc<str> {
        let label = &self.settings.label;
        match &self.settings.holder_tag {
            Some(tag) => tag.label(label, &self.reporter),
            None => Arc::clone(label),
        }
    }

    /// Checks that an operator's command can be sent.
    pub(crate) fn check_admin(&self) -> Result<(), LockError> {
        self.check_process()?;
        self.check_runtime()
    }

    /// Returns whether a guard or an acquisition of this manager has the owner id.
    pub(crate) fn is_own(&self, owner_id: OwnerId) -> bool {
        self.notifications.is_registered(owner_id)
    }

    /// Notes whether the holder in a reply is of this manager.
    pub(crate) fn recognize_holder(&self, outcome: &mut AcquireOutcome) {
        if let Some(holder) = outcome.holder_mut() {
            holder.is_own = holder.owner_id.is_some_and(|id| self.is_own(id));
        }
    }

    pub(crate) fn process(&self) -> Process {
        self.process
    }

    /// Checks for a runtime if the store needs one to reach its server.
    pub(crate) fn check_runtime(&self) -> Result<(), LockError> {
        match &self.worker {
            Some(_) => check_runtime(),
            None => Ok(()),
        }
    }

    /// Checks that one command can exchange the owner of a lock in this dialect. That takes what shared locks take: native
    /// scripts, and no quorum.
    pub(crate) fn check_exchange(&self, dialect: Dialect) -> Result<(), InvalidTicketReason> {
        if !dialect.capabilities().supports_shared_kinds() {
            return Err(InvalidTicketReason::Dialect);
        }
        if !self.store.traits().one_server_per_lock {
            return Err(InvalidTicketReason::Quorum);
        }
        Ok(())
    }

    /// Returns a number that identifies the manager for as long as it lives.
    pub(crate) fn manager_id(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).addr()
    }

    /// Returns whether a caller that waits for a loss needs its own timer for the end of the lease.
    pub(crate) fn needs_expiry_timer(&self) -> bool {
        self.worker.is_none()
    }

    pub(crate) fn track(&self, held: &Arc<HeldLock>) {
        if let Some(worker) = &self.worker {
            worker.track(held);
        } else if let Some(reason) = self.tracked.add(held) {
            let _lost = held.apply_renewal(Ok(RenewOutcome::NotOwner(reason)));
        }
        #[cfg(feature = "testing")]
        if let Some(on_tracked) = self.on_tracked.get() {
            on_tracked(held);
        }
    }

    /// Returns for how long a revoked lock stays locked where leases do not end: for the holder's ttl.
    pub(crate) fn revoked_lease(&self, key: &LockKey) -> Duration {
        let held = self
            .tracked
            .held()
            .into_iter()
            .find(|held| held.key == *key);
        held.map_or(self.settings.default_ttl, |held| held.ttl())
    }

    /// Tells the holder that an operator released its lock, where no renewal tells it.
    pub(crate) fn on_force_released(&self, owner_id: OwnerId, reason: LossReason) {
        if self.worker.is_some() {
            return;
        }
        let is_acquiring = |owner_id| self.is_own(owner_id);
        if let Some(held) = self.tracked.take(owner_id, &reason, is_acquiring) {
            let _lost = held.apply_renewal(Ok(RenewOutcome::NotOwner(reason)));
        }
    }

    /// As [`on_force_released`](Self::on_force_released), for all holders of a shared lock.
    pub(crate) fn on_group_force_released(&self, key: &LockKey, reason: &LossReason) {
        for held in self.tracked.held() {
            if held.key == *key && held.renewal().lease_config.kind.is_shared() {
                self.on_force_released(held.owner_id, reason.clone());
            }
        }
    }

    /// Stops renewals and loss notifications. Must not run in a forked child: the background thread
    /// may have held the schedule's mutex at the fork, and no thread unlocks it in the child.
    pub(crate) fn untrack(&self, held: &HeldLock) {
        held.release();
        if let Some(worker) = &self.worker {
            worker.untrack(held);
        }
    }

    pub(crate) async fn renew(&self, held: &Arc<HeldLock>) -> Result<(), LockError> {
        self.check_process()?;
        self.check_runtime()?;
        if held.is_lost() || held.is_released() {
            return Err(held.lost_error());
        }
        let limit = self.settings.command_timeout.min(held.remaining());
        let result = self.store.renew(&held.renewal(), limit).await;
        let result = held.apply_renewal(result);
        self.track(held);
        result
    }

    /// Releases on the caller's runtime, within `limit`. Must not run in a forked child.
    pub(crate) async fn release(
        &self,
        request: ReleaseRequest,
        validity: Validity,
        limit: Duration,
    ) -> Result<ReleaseOutcome, LockError> {
        let now = self.clock().now();
        let cleanup = Cleanup::new(request, now, self.settings.command_timeout);
        let mut release = AwaitedRelease::new(cleanup, now.plus(limit), validity);
        let step = release.on_start(now);
        self.finish_release(&mut release, step).await
    }

    /// Performs the steps of a release until it is done. By reference, and with the call in place, because the future of
    /// an `async fn` has the space of its arguments twice.
    pub(super) async fn finish_release(
        &self,
        release: &mut AwaitedRelease<LockError>,
        mut step: AwaitedStep<LockError>,
    ) -> Result<ReleaseOutcome, LockError> {
        let result = loop {
            step = match step {
                AwaitedStep::Send { limit } => {
                    let result = {
                        let mut call = Call::new(OpKind::Release(release.request()));
                        let deadline = Deadline::after(self.clock(), limit);
                        let calls = &mut [&mut call];
                        self.store.call(calls, Together::Each, deadline).await;
                        call.released()
                    };
                    let now = self.clock().now();
                    match result {
                        Ok(outcome) => {
                            let key = &release.request().key;
                            self.notifications.on_release(key, &outcome, now);
                            release.on_reply(outcome, now)
                        }
                        Err(error) => release.on_failure(error, now),
                    }
                }
                AwaitedStep::WaitUntil(at) => {
                    tokio::time::sleep(at.since(self.clock().now())).await;
                    release.on_timeout(self.clock().now())
                }
                AwaitedStep::Done(result) => break result,
            };
        };
        if release.is_finished() {
            self.notifications.remove(release.request().owner_id);
        }
        result
    }

    /// Releases in the background. Callable from anywhere, even while a runtime shuts down. Must
    /// not run in a forked child: the lock belongs to the parent.
    pub(crate) fn release_in_background(&self, release_request: ReleaseRequest) {
        if let Some(worker) = &self.worker {
            worker.submit(release_request);
        } else {
            self.store.release_now(&release_request);
            self.notifications.remove(release_request.owner_id);
        }
    }

    /// Ends all acquires, also those to come. Held locks stay.
    pub(crate) fn close(&self) {
        // The waiters of a forked child belong to its parent.
        if self.check_process().is_ok() {
            self.activity.close(&self.reporter);
            self.notifications.end_waits();
        }
    }

    /// Ends all acquires, and waits at most the shutdown timeout until no lock is held and no release or
    /// cancel is open.
    pub(crate) async fn shutdown(&self) -> Result<(), ShutdownIncomplete> {
        // The locks of a forked child belong to its parent.
        if self.check_process().is_err() {
            return Ok(());
        }
        self.activity.shut_down(&self.reporter);
        self.notifications.end_waits();
        let ended = async {
            self.activity.idle().await;
            if let Some(worker) = &self.worker {
                worker.drained().await;
            }
        };
        let _ended_or_elapsed = tokio::time::timeout(self.settings.shutdown_timeout, ended).await;
        let held = self.activity.held();
        match (self.activity.acquiring() + self.cleanups_open(), held) {
            (0, 0) => Ok(()),
            (open, held) => Err(ShutdownIncomplete { open, held }),
        }
    }

    /// Returns the number of open releases and cancels. This includes releases that were given up while
    /// their leases last.
    pub(crate) fn cleanups_open(&self) -> usize {
        self.worker.as_ref().map_or(0, BackgroundWorker::open)
    }

    /// Returns the age of the oldest held lock.
    pub(crate) fn oldest_held(&self) -> Option<Duration> {
        let now = self.clock().now();
        let ages = if let Some(worker) = &self.worker {
            worker.oldest(now)
        } else {
            let mut ages = BTreeMap::new();
            for held in self.tracked.held() {
                held.add_age(now, &mut ages);
            }
            ages
        };
        ages.into_values().max()
    }

    pub(crate) fn is_worker_alive(&self) -> bool {
        let is_alive = self.worker.as_ref().is_none_or(BackgroundWorker::is_alive);
        is_alive && self.check_process().is_ok()
    }
}
