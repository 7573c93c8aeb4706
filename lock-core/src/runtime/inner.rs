//! The state that a manager shares with its requests and guards.

use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::runtime::Handle;

use crate::backend::{Backend, ReleaseOutcome, ReleaseRequest, RenewOutcome};
use crate::config::ManagerConfig;
use crate::error::{Holder, LockError};
use crate::protocol::clock::{Clock, Deadline, Moment};
use crate::protocol::dialect::{Dialect, InvalidDialectReason};
use crate::runtime::background::{BackgroundWorker, CleanupJob};
use crate::runtime::held_lock::HeldLock;
use crate::runtime::notifications::Notifications;
use crate::stats::Counters;
use crate::sync::Process;

/// Shared by all clones of a manager, its guards and its waiters.
pub(crate) struct ManagerInner {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) notifications: Arc<Notifications>,
    pub(crate) config: ManagerConfig,
    pub(crate) counters: Arc<Counters>,
    /// `None` if the backend holds locks without renewals.
    worker: Option<BackgroundWorker>,
    #[cfg(feature = "testing")]
    pub(crate) tracked: crate::runtime::tracked::TrackedLocks,
    process: Process,
}

impl ManagerInner {
    /// Creates the state for a backend that holds locks without renewals.
    pub(crate) fn without_worker(
        backend: Arc<dyn Backend>,
        notifications: Arc<Notifications>,
        counters: Arc<Counters>,
        config: ManagerConfig,
    ) -> Self {
        Self {
            backend,
            notifications,
            config,
            counters,
            worker: None,
            #[cfg(feature = "testing")]
            tracked: crate::runtime::tracked::TrackedLocks::default(),
            process: Process::current(),
        }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn with_worker(
        backend: Arc<dyn Backend>,
        notifications: Arc<Notifications>,
        counters: Arc<Counters>,
        config: ManagerConfig,
    ) -> Result<Self, LockError> {
        let worker = BackgroundWorker::start(
            Arc::clone(&backend),
            Arc::clone(&notifications),
            Arc::clone(&counters),
            config.command_timeout,
        )?;
        Ok(Self {
            worker: Some(worker),
            ..Self::without_worker(backend, notifications, counters, config)
        })
    }

    pub(crate) fn clock(&self) -> Clock {
        self.backend.clock()
    }

    /// Returns an error in a forked child, which has neither the background thread nor connections.
    pub(crate) fn check_process(&self) -> Result<(), LockError> {
        if self.process.is_current() {
            Ok(())
        } else {
            Err(LockError::Forked)
        }
    }

    pub(crate) fn process(&self) -> Process {
        self.process
    }

    /// Checks for a runtime if the backend needs one to reach its server.
    fn check_runtime(&self) -> Result<(), LockError> {
        match &self.worker {
            Some(_) => check_runtime(),
            None => Ok(()),
        }
    }

    /// Checks whether the backend supports the dialect: most dialects need a server.
    pub(crate) fn check_dialect(&self, dialect: Dialect) -> Result<(), InvalidDialectReason> {
        let has_server = !self.backend.holds_without_renewal();
        if dialect.capabilities().in_memory || has_server {
            Ok(())
        } else {
            Err(InvalidDialectReason::NoServer)
        }
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
        } else {
            #[cfg(feature = "testing")]
            self.tracked.add(held);
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
        let limit = self.config.command_timeout.min(held.remaining());
        let renewal = [held.renewal()];
        let outcome = self.backend.renew(&renewal, limit).await.pop();
        let outcome = outcome.unwrap_or(RenewOutcome::NotOwner);
        let result = held.apply_renewal(outcome, self.clock().now());
        self.track(held);
        result
    }

    /// Releases on the caller's runtime, and sends the release again within the command timeout.
    /// Must not run in a forked child.
    pub(crate) async fn release(
        &self,
        request: &ReleaseRequest,
        was_valid: bool,
    ) -> Result<ReleaseOutcome, LockError> {
        let deadline = Deadline::after(self.clock(), self.config.command_timeout);
        let mut resent = false;
        let mut first_error = None;
        loop {
            match self.backend.release(request, deadline.left()).await {
                Ok(mut outcome) => {
                    // The first copy may have released the lock, and its reply may be lost.
                    outcome.was_owner |= resent && was_valid;
                    if request.is_finished_by(&outcome) {
                        self.notifications.remove(request.owner_id);
                    }
                    return Ok(outcome);
                }
                Err(error) if error.is_retryable() && !deadline.has_passed() => {
                    resent = true;
                    // A later copy had less time, so its timeout adds nothing.
                    if !(error.is_timed_out() && first_error.is_some()) {
                        first_error = Some(error);
                    }
                    tokio::time::sleep(RESEND_PAUSE.min(deadline.left())).await;
                }
                Err(error) if error.is_timed_out() => return Err(first_error.unwrap_or(error)),
                Err(error) => return Err(error),
            }
        }
    }

    /// Releases in the background. Callable from anywhere, even while a runtime shuts down. Must
    /// not run in a forked child: the lock belongs to the parent.
    pub(crate) fn release_in_background(&self, release_request: ReleaseRequest) {
        if let Some(worker) = &self.worker {
            let give_up_at = self.give_up_at(&release_request);
            worker.submit(CleanupJob {
                release_request,
                give_up_at,
            });
        } else {
            // Without a background worker, the backend is in this process and finishes in the first
            // poll.
            let mut cx = Context::from_waker(Waker::noop());
            let mut release = self.backend.release(&release_request, Duration::ZERO);
            let _done = release.as_mut().poll(&mut cx);
            drop(release);
            self.notifications.remove(release_request.owner_id);
        }
    }

    /// Returns when every command that was sent until now has taken effect, and its lease has
    /// ended.
    fn give_up_at(&self, release_request: &ReleaseRequest) -> Moment {
        let longest = self.config.command_timeout.saturating_mul(2);
        self.clock()
            .now()
            .plus(longest)
            .plus(release_request.ttl.as_duration())
    }

    /// Waits at most the shutdown timeout until no release or cancel is open. Returns how many are
    /// left.
    pub(crate) async fn drain(&self) -> usize {
        match &self.worker {
            Some(worker) => worker.drain(self.config.shutdown_timeout).await,
            None => 0,
        }
    }

    /// Returns the holder for an error, with its queue position.
    pub(crate) fn holder(
        &self,
        observed: Option<crate::backend::ObservedHolder>,
        position: Option<u64>,
    ) -> Option<Holder> {
        observed.map(|observed| Holder {
            this_process: observed
                .owner_id
                .is_some_and(|owner_id| self.notifications.is_registered(owner_id)),
            label: observed.label,
            remaining: observed.remaining,
            position: position.map(|rank| u32::try_from(rank).unwrap_or(u32::MAX)),
        })
    }
}

/// Checks for a tokio runtime: waiting needs its timers, and a server connection its sockets.
pub(crate) fn check_runtime() -> Result<(), LockError> {
    match Handle::try_current() {
        Ok(_) => Ok(()),
        Err(_) => Err(LockError::NoRuntime),
    }
}

/// The pause before a release is sent again, so that a connection can be restored.
const RESEND_PAUSE: Duration = Duration::from_millis(20);
