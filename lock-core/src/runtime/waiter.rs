//! Acquires a lock: drives an [`Acquisition`](crate::protocol::acquisition::Acquisition) over the
//! backend. All decisions are in that state machine; this module does its IO.

use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, warn};

use crate::backend::Renewal;
use crate::error::LockError;
use crate::protocol::acquisition::{
    AcquireConfig, Action, Connectivity, LeaseKind, Patience, RenewOutcome, RenewReason,
};
use crate::protocol::cleanup::Validity;
use crate::protocol::clock::Moment;
use crate::protocol::key::LockKey;
use crate::protocol::lease::LeaseConfig;
use crate::protocol::mailbox::Notification;
use crate::protocol::renew::Renew;
use crate::runtime::acquired::Acquired;
use crate::runtime::inner::{ManagerInner, check_runtime};
use crate::runtime::pending::PendingAcquire;
use crate::runtime::reentrancy;

/// Makes one attempt, without an entry in the queue. `spent` is the part of the command timeout that
/// has passed.
///
/// # Cancel safety
/// Dropping the future releases a lock that was granted meanwhile.
pub(crate) async fn try_acquire(
    inner: &Arc<ManagerInner>,
    key: LockKey,
    lease_config: LeaseConfig,
    spent: Duration,
) -> Result<Acquired, LockError> {
    let started = inner.clock().now();
    let until = started.plus(inner.config.command_timeout.saturating_sub(spent));
    let patience = Patience::OneAttempt { started, until };
    drive(inner, key, lease_config, patience, until).await
}

/// Waits for the lock for at most `wait`, of which `spent` has passed.
///
/// # Cancel safety
/// Dropping the future leaves the queue. A lock that was granted meanwhile goes to the next waiter.
pub(crate) async fn acquire(
    inner: &Arc<ManagerInner>,
    key: LockKey,
    lease_config: LeaseConfig,
    wait: Duration,
    spent: Duration,
) -> Result<Acquired, LockError> {
    let started = inner.clock().now().minus(spent);
    let deadline = started.plus(wait);
    let patience = Patience::Wait { started, deadline };
    drive(inner, key, lease_config, patience, deadline).await
}

fn check(inner: &Arc<ManagerInner>, key: &LockKey) -> Result<(), LockError> {
    inner.check_process()?;
    // The backend of a server checks the runtime itself.
    if inner.backend.holds_without_renewal() {
        check_runtime()?;
    }
    if reentrancy::is_entered(inner.manager_id(), key.as_str()) {
        return Err(LockError::WouldDeadlock { key: key.text() });
    }
    Ok(())
}

/// Performs the actions of the acquisition until it is done.
async fn drive(
    inner: &Arc<ManagerInner>,
    key: LockKey,
    lease_config: LeaseConfig,
    patience: Patience,
    connect_until: Moment,
) -> Result<Acquired, LockError> {
    check(inner, &key)?;
    if inner.backend.seems_down() {
        inner.backend.wait_connected(connect_until).await?;
    }
    let holds_without_renewal =
        inner.backend.holds_without_renewal() && lease_config.renew != Renew::Never;
    let config = AcquireConfig {
        key,
        lease_config,
        label: Arc::clone(&inner.config.label),
        patience,
        lease_kind: if holds_without_renewal {
            LeaseKind::Endless
        } else {
            LeaseKind::Renewed
        },
        command_timeout: inner.config.command_timeout,
        retry_interval: inner.config.retry_interval,
    };
    let mut pending = PendingAcquire::new(inner, config);
    let mut action = pending.acquisition.on_start(inner.clock().now());
    loop {
        action = match action {
            Action::Acquire { limit } => pending.acquire(limit).await,
            Action::Renew { limit, reason } => pending.renew(limit, reason).await,
            Action::Cancel { limit } => pending.cancel(limit).await,
            Action::Wait { until } => pending.wait(until).await,
            Action::Reconnect { until } => pending.reconnect(until).await,
            Action::StartOver => pending.start_over(),
            Action::Done(result) => return pending.finish(result),
        };
    }
}

type NextAction = Action<LockError>;

/// What ended the wait for a connection.
enum Woken {
    Notified(Notification),
    Connected(Result<(), LockError>),
}

impl PendingAcquire {
    fn now(&self) -> Moment {
        self.inner.clock().now()
    }

    fn connectivity(&self) -> Connectivity {
        if self.inner.backend.is_connected() {
            Connectivity::Up
        } else {
            Connectivity::Down
        }
    }

    async fn acquire(&mut self, limit: Duration) -> NextAction {
        let sent = self.acquisition.sent_mut();
        let result = self.inner.backend.acquire(sent, limit).await;
        let now = self.now();
        match result {
            Ok(outcome) => self.acquisition.on_reply(outcome, now, &mut self.peers),
            Err(error) => {
                self.inner.counters.trace(|| {
                    debug!(key = %self.key(), %error, "an acquire failed");
                });
                let connectivity = self.connectivity();
                self.acquisition.on_no_reply(error, connectivity, now)
            }
        }
    }

    async fn renew(&mut self, limit: Duration, reason: RenewReason) -> NextAction {
        if reason == RenewReason::Implausible {
            self.inner.counters.trace(|| {
                warn!(key = %self.key(), "the server cannot have written this grant; it is confirmed first");
            });
        }
        let sent = self.acquisition.sent();
        let renewal = [Renewal {
            key: sent.key.clone(),
            owner_id: sent.owner_id,
            ttl: sent.lease_config.ttl.as_duration(),
            lease_config: sent.lease_config,
        }];
        let result = self.inner.backend.renew(&renewal, limit).await.pop();
        let result = result.unwrap_or(Ok(RenewOutcome::NotOwner));
        if let Err(error) = &result {
            self.inner.counters.trace(|| {
                debug!(key = %self.key(), %error, "the renewal that confirms a grant failed");
            });
        }
        let (now, connectivity) = (self.now(), self.connectivity());
        self.acquisition
            .on_renew_reply(result, connectivity, now, &mut self.peers)
    }

    async fn cancel(&mut self, limit: Duration) -> NextAction {
        let request = self.acquisition.sent().release_request();
        let result = self.inner.release(request, Validity::Lost, limit).await;
        if let Err(error) = &result {
            self.inner.counters.trace(|| {
                debug!(key = %self.key(), %error, "the background worker leaves the queue for this waiter");
            });
        }
        let now = self.now();
        self.acquisition.on_cancel_reply(result.ok().as_ref(), now)
    }

    async fn wait(&mut self, until: Moment) -> NextAction {
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
            Some(notification) => {
                self.acquisition
                    .on_notification(notification, now, &mut self.peers)
            }
            None => self.acquisition.on_timeout(now),
        }
    }

    async fn reconnect(&mut self, until: Moment) -> NextAction {
        let connected = self.inner.backend.wait_connected(until);
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
            Woken::Notified(notification) => {
                self.acquisition
                    .on_notification(notification, now, &mut self.peers)
            }
            Woken::Connected(result) => self.acquisition.on_reconnect(result, now),
        }
    }
}
