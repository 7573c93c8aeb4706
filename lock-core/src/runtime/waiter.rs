//! Acquires a lock: one attempt, or waiting with notifications and polls.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::{AcquireOutcome, Acquisition, Notification, ObservedHolder};
use crate::error::{Holder, LockError};
use crate::protocol::backoff::{Backoff, Jitter};
use crate::protocol::clock::{Clock, Moment};
use crate::protocol::fencing_token::FencingToken;
use crate::protocol::key::LockKey;
use crate::protocol::lease::{Lease, LeaseConfig};
use crate::protocol::poll_schedule::{HolderExpiry, LocalPosition, ObservedExpiry, PollSchedule};
use crate::runtime::acquired::Acquired;
use crate::runtime::inner::{ManagerInner, check_runtime};
use crate::runtime::no_expiry::{NO_EXPIRY_LIMIT, NoExpiry};
use crate::runtime::pending::PendingAcquire;
use crate::runtime::reentrancy;
use tracing::{debug, warn};

mod attempt;
mod confirm;

pub(crate) use self::attempt::try_acquire;

/// How long a waiter waits, after the end of its wait, for the confirmation that it has left the queue.
/// After that the background worker continues.
const CANCEL_TIMEOUT: Duration = Duration::from_millis(150);
/// The time limit of the first poll, also when the wait is shorter.
const FIRST_POLL_TIMEOUT: Duration = Duration::from_millis(50);

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
    check(inner, &key)?;
    let started = inner.clock().now().minus(spent);
    let deadline = started.plus(wait);
    if inner.backend.seems_down() {
        inner.backend.wait_connected(deadline).await?;
    }
    let label = Arc::clone(&inner.config.label);
    let acquisition = Acquisition::new(key, lease_config, label, Some(deadline));
    let mut jitter = Jitter::seeded(acquisition.owner_id.random_bits());
    let mut waiter = Waiter {
        pending: PendingAcquire::new(Arc::clone(inner), acquisition),
        started,
        deadline,
        backoff: Backoff::new(jitter.fork()),
        poll_schedule: PollSchedule::new(started, inner.config.retry_interval, jitter),
        observed: None,
        last_error: None,
        is_disconnected: false,
        no_expiry: NoExpiry::default(),
        has_sent: false,
        is_owner_id_exposed: false,
    };
    loop {
        if let Some(confirmed) = waiter.poll_server().await? {
            return Ok(confirmed.into_acquired(waiter.pending));
        }
        match waiter.wait_for_notification().await? {
            WaitEvent::Acquired(acquired) => return Ok(acquired.into_acquired(waiter.pending)),
            WaitEvent::Poll => {}
            WaitEvent::TimedOut => return Err(waiter.give_up().await),
        }
    }
}

struct Waiter {
    pending: PendingAcquire,
    started: Moment,
    deadline: Moment,
    poll_schedule: PollSchedule,
    backoff: Backoff,
    /// The holder at the last poll, and the rank in the queue if there is one.
    observed: Option<(Option<ObservedHolder>, Option<u64>)>,
    /// Why the last poll got no reply, and when.
    last_error: Option<(LockError, Moment)>,
    /// There is no connection to poll over.
    is_disconnected: bool,
    no_expiry: NoExpiry,
    has_sent: bool,
    /// A grant that made no guard may have been published. Every subscriber may know the owner id, and
    /// could forge the next grant.
    is_owner_id_exposed: bool,
}

/// A confirmed lock, before it leaves the waiter.
struct ConfirmedLease {
    token: Option<FencingToken>,
    lease: Lease,
}

impl ConfirmedLease {
    fn into_acquired(self, pending: PendingAcquire) -> Acquired {
        pending.into_acquired(self.token, self.lease)
    }
}

enum WaitEvent {
    Acquired(ConfirmedLease),
    Poll,
    TimedOut,
}

impl Waiter {
    fn clock(&self) -> Clock {
        self.pending.inner.clock()
    }

    /// Returns the end of the wait, or a little more to find out whether a key gets its expiry.
    fn ends_at(&self) -> Moment {
        let latest = self.no_expiry.latest(self.deadline.plus(NO_EXPIRY_LIMIT));
        latest.map_or(self.deadline, |latest| self.deadline.max(latest))
    }

    /// Returns the time limit of the next command. Even the shortest wait polls the server once.
    fn limit(&self) -> Duration {
        let mut left = self.ends_at().since(self.clock().now());
        if !self.has_sent {
            left = left.max(FIRST_POLL_TIMEOUT);
        }
        self.pending.inner.config.command_timeout.min(left)
    }

    /// Polls the server. Returns the lock if the server granted it.
    async fn poll_server(&mut self) -> Result<Option<ConfirmedLease>, LockError> {
        loop {
            let limit = self.limit();
            if limit.is_zero() {
                return Ok(None);
            }
            let outcome = self.pending.send(limit).await;
            let now = self.clock().now();
            let is_first_command = !std::mem::replace(&mut self.has_sent, true);
            self.poll_schedule.end_poll(now);
            match outcome {
                Ok(AcquireOutcome::Held {
                    token,
                    sent,
                    remaining,
                }) => {
                    if is_first_command {
                        self.pending.acquisition.granted_by_first_command();
                    }
                    return Ok(self.confirmed(token, sent, remaining));
                }
                Ok(AcquireOutcome::Queued {
                    rank,
                    holder_expiry,
                    holder,
                    poll,
                }) => self.on_reply(now, Some(rank), holder_expiry, holder, poll)?,
                Ok(AcquireOutcome::Busy {
                    holder_expiry,
                    holder,
                }) => {
                    self.on_reply(now, None, holder_expiry, holder, None)?;
                }
                // The lock is free, and the call has removed a hundred dead waiters.
                Ok(AcquireOutcome::More) => {
                    self.last_error = None;
                    self.observed = None;
                    continue;
                }
                Err(error) if error.is_retryable() => {
                    self.pending.inner.counters.trace(|| {
                        let key = &self.pending.acquisition.key;
                        debug!(%key, %error, "no reply to a poll of a waiter; it polls again");
                    });
                    if let Some(acquired) = self.probe_by_renewal(&error).await {
                        return Ok(Some(acquired));
                    }
                    self.is_disconnected = !self.pending.inner.backend.is_connected();
                    self.record_error(error, limit);
                    let pause = self.backoff.pause();
                    self.poll_schedule.at_once(self.clock().now().plus(pause));
                }
                Err(error) => return Err(error),
            }
            return Ok(None);
        }
    }

    /// Records the error of a poll, unless it says less than what is known. A poll that timed out only
    /// because the wait ended says less than a holder or an earlier error. A timeout also says less
    /// than an error that the server returned a moment ago.
    fn record_error(&mut self, error: LockError, limit: Duration) {
        let (now, timeout) = (
            self.clock().now(),
            self.pending.inner.config.command_timeout,
        );
        let has_result = self.observed.is_some() || self.last_error.is_some();
        let known = self.last_error.as_ref();
        let has_recent_cause = known.is_some_and(|(known, at)| {
            !known.is_timed_out() && now.since(*at) < timeout.saturating_mul(2)
        });
        let says_less = limit < timeout && has_result || has_recent_cause;
        if !(error.is_timed_out() && says_less) {
            self.last_error = Some((error, now));
        }
    }

    fn on_reply(
        &mut self,
        now: Moment,
        rank: Option<u64>,
        holder_expiry: HolderExpiry,
        holder: Option<ObservedHolder>,
        poll: Option<Duration>,
    ) -> Result<(), LockError> {
        self.last_error = None;
        self.backoff.reset();
        if self.no_expiry.observe(holder_expiry, holder.as_ref(), now)
            && self.no_expiry.left(now).is_zero()
        {
            return Err(self.no_expiry.error(&self.pending.acquisition.key));
        }
        let local_position = match rank {
            Some(_) => {
                let token = holder.as_ref().and_then(|holder| holder.token);
                let observed_expiry =
                    holder_expiry
                        .ends()
                        .map(|holder_expires_at| ObservedExpiry {
                            at: now,
                            holder_expires_at,
                        });
                self.pending.enter_queue(observed_expiry, token)
            }
            None => LocalPosition::First,
        };
        self.poll_schedule
            .on_reply(now, rank.unwrap_or(0), holder_expiry, poll, local_position);
        self.observed = Some((holder, rank));
        Ok(())
    }

    /// Waits for a grant, for the time of the next poll, or for the end of the wait.
    async fn wait_for_notification(&mut self) -> Result<WaitEvent, LockError> {
        loop {
            let Some(slot) = self.pending.slot.clone() else {
                return Ok(WaitEvent::Poll);
            };
            let clock = self.clock();
            let ends_at = self.ends_at();
            let inner = Arc::clone(&self.pending.inner);
            let poll_at = self.poll_schedule.next().min(ends_at);
            let is_disconnected = self.is_disconnected;
            // Without a connection the waiter cannot poll.
            let pause = async {
                if is_disconnected {
                    return inner.backend.wait_connected(ends_at).await;
                }
                tokio::time::sleep(poll_at.since(clock.now())).await;
                Ok(())
            };
            let notification = tokio::select! {
                biased;
                notification = slot.next() => Some(notification),
                connected = pause => {
                    match connected {
                        Ok(()) => self.is_disconnected = false,
                        Err(error) if error.is_retryable() => {
                            let timeout = inner.config.command_timeout;
                            self.record_error(error, timeout);
                        }
                        Err(error) => return Err(error),
                    }
                    None
                }
            };
            match notification {
                Some(Notification::Grant(grant)) => {
                    return Ok(match self.accept_grant(grant).await {
                        Some(acquired) => WaitEvent::Acquired(acquired),
                        None => WaitEvent::Poll,
                    });
                }
                Some(Notification::Head { holder_expires_at }) => {
                    self.poll_schedule.is_head(clock.now(), holder_expires_at);
                }
                Some(Notification::First) => {
                    let observed = inner
                        .notifications
                        .last_observed(self.pending.acquisition.key.as_str());
                    self.poll_schedule.is_first(clock.now(), observed);
                }
                Some(Notification::Poll) => {
                    // A grant may have been lost, and its lease may have ended.
                    self.is_owner_id_exposed = true;
                    if !self.is_disconnected {
                        return Ok(WaitEvent::Poll);
                    }
                }
                None => {}
            }
            let now = clock.now();
            if now >= self.ends_at() {
                return Ok(WaitEvent::TimedOut);
            }
            if !self.is_disconnected && now >= self.poll_schedule.next() {
                return Ok(WaitEvent::Poll);
            }
        }
    }

    /// Leaves the queue at the end of the wait. A lock that is granted at this moment goes to the next
    /// waiter.
    async fn give_up(mut self) -> LockError {
        if let Some(error) = self.no_expiry.take_error(&self.pending.acquisition.key) {
            return error;
        }
        let now = self.clock().now();
        let limit = CANCEL_TIMEOUT.min(self.deadline.plus(NO_EXPIRY_LIMIT).since(now));
        if self.pending.acquisition.is_open() && !self.is_disconnected && !limit.is_zero() {
            let release_request = self.pending.release_request();
            match self
                .pending
                .inner
                .backend
                .release(&release_request, limit)
                .await
            {
                Ok(released) => self.pending.acquisition.cancel_confirmed(&released),
                Err(error) => self.pending.inner.counters.trace(|| {
                    debug!(key = %release_request.key, %error, "the background worker leaves the queue for this waiter");
                }),
            }
        }
        if let Some((last_error, _)) = self.last_error.take() {
            return last_error;
        }
        let inner = &self.pending.inner;
        let (observed, rank) = self.observed.take().unwrap_or((None, None));
        let holder = inner.holder(observed, rank);
        if holder.as_ref().is_some_and(Holder::is_this_process) {
            let key = &self.pending.acquisition.key;
            inner
                .counters
                .trace(|| warn!(%key, "gave up waiting for a lock that this process holds"));
        }
        LockError::Timeout {
            key: self.pending.acquisition.key.text(),
            waited: inner.clock().now().since(self.started),
            holder,
        }
    }
}
