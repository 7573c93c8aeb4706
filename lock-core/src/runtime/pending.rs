//! An acquisition in progress, which is cancelled when it is dropped.

use std::sync::Arc;

use crate::error::{BackendErrorKind, Holder, LockError, foreign_key};
use crate::runtime::acquired::Acquired;
use crate::runtime::held_lock::HeldLock;
use crate::runtime::inner::ManagerInner;
use crate::runtime::notifications::{LocalPeers, Registrant};
use crate::runtime::records::AcquireRecord;
use crate::store::NotificationSink;
use crate::telemetry::LockEvent;
use lock_protocol::acquisition::{
    AcquireConfig, AcquireFailure, AcquireOrigin, AcquireResult, Acquisition, DropAction,
    NextAction, Patience, SentAcquires,
};
use lock_protocol::backoff::Jitter;
use lock_protocol::cleanup::ReleaseRequest;
use lock_protocol::fencing_token::FencingToken;
use lock_protocol::key::LockKey;
use lock_protocol::kind::Kind;
use lock_protocol::lease::Lease;
use lock_protocol::lock_state::Purpose;
use lock_protocol::loss::LossReason;
use lock_protocol::mailbox::Notification;
use lock_protocol::owner_id::OwnerId;

/// An acquisition that is cancelled when it is dropped, at any await.
pub(crate) struct PendingAcquire {
    pub(crate) inner: Arc<ManagerInner>,
    pub(crate) acquisition: Acquisition<LockError>,
    pub(crate) peers: LocalPeers,
    /// `None` if no event had a reader when the acquire began.
    pub(crate) record: Option<Box<AcquireRecord>>,
}

impl PendingAcquire {
    pub(crate) fn new(
        inner: &Arc<ManagerInner>,
        config: AcquireConfig,
        record: Option<Box<AcquireRecord>>,
    ) -> Self {
        // A downgrade goes on under the owner id that holds.
        let owner_id = match &config.origin {
            AcquireOrigin::New | AcquireOrigin::Exchange { .. } => OwnerId::random(),
            AcquireOrigin::Downgrade { held, .. } => held.owner_id,
        };
        let registrant = match config.patience {
            Patience::OneAttempt { .. } if config.outage_wait.is_none() => Registrant::Attempt,
            // An attempt that waits for the server has to learn of a shutdown.
            Patience::OneAttempt { .. } | Patience::Wait { .. } => Registrant::Waiter,
        };
        inner.activity.begin_acquire();
        // Registered before anything is sent: a notification may overtake the reply.
        let peers = inner
            .notifications
            .register_acquire(owner_id, config.key.text(), registrant);
        let jitter = Jitter::seeded(owner_id.random_bits());
        Self {
            inner: Arc::clone(inner),
            acquisition: Acquisition::new(config, owner_id, jitter),
            peers,
            record,
        }
    }

    pub(crate) fn key(&self) -> &LockKey {
        &self.acquisition.sent().key
    }

    fn kind(&self) -> Kind {
        self.acquisition.sent().lease_config.kind
    }

    /// Returns whether the manager no longer acquires locks. The holder of a lock may still downgrade it after a close.
    pub(crate) fn is_refused(&self) -> bool {
        let activity = &self.inner.activity;
        match self.acquisition.sent().purpose() {
            Purpose::Downgrade => activity.is_shutting_down(),
            // A guard that becomes a ticket isn't asked.
            Purpose::Acquire | Purpose::Exchange(_) => activity.is_closing(),
        }
    }

    /// Continues under a new owner id, and cancels the old one.
    pub(crate) fn start_over(&mut self) -> NextAction<LockError> {
        self.end();
        let owner_id = OwnerId::random();
        let key = self.key().text();
        // Only a waiter starts over.
        self.peers = self
            .inner
            .notifications
            .register_acquire(owner_id, key, Registrant::Waiter);
        // The shutdown has notified only the old owner id.
        if self.inner.activity.is_closing() {
            let sink = &self.inner.notifications;
            sink.notify(owner_id, Notification::ShuttingDown);
        }
        self.acquisition
            .on_start_over(owner_id, self.inner.clock().now())
    }

    /// Ends the use of the owner id.
    fn end(&mut self) {
        let owner_id = self.acquisition.sent().owner_id;
        match self.acquisition.on_drop(&mut self.peers) {
            DropAction::LeaveToGuard => {}
            DropAction::Forget => self.inner.notifications.remove(owner_id),
            DropAction::Cancel(request) => self.inner.release_in_background(request),
        }
    }

    /// Returns the guard's part of the lock, or the error for the caller.
    pub(crate) fn finish(
        mut self,
        result: AcquireResult<LockError>,
    ) -> Result<Acquired, LockError> {
        let record = self.record.take();
        let result = self.into_result(result);
        if let Some(mut record) = record {
            match &result {
                Ok(acquired) => record.granted(acquired.held.token),
                Err(error) => record.failed(error),
            }
        }
        result
    }

    /// Returns what a ticket says about the lock: the owner id, the token, and the end of the lease. Nobody renews the lock
    /// or releases it.
    pub(crate) fn into_granted(
        self,
        result: AcquireResult<LockError>,
    ) -> Result<(OwnerId, Option<FencingToken>, Lease), LockError> {
        match result {
            AcquireResult::Acquired {
                token,
                lease,
                release_request,
            } => {
                self.inner.notifications.remove(release_request.owner_id);
                Ok((release_request.owner_id, token, lease))
            }
            other => self
                .into_result(other)
                .and_then(|_| Err(LockError::unreadable())),
        }
    }

    fn into_result(self, result: AcquireResult<LockError>) -> Result<Acquired, LockError> {
        match result {
            AcquireResult::Acquired {
                token,
                lease,
                release_request,
            } => {
                if let Some((rank, at)) = self.acquisition.last_rank() {
                    let time = self.inner.clock().now().since(at);
                    let turns = rank.saturating_add(1);
                    self.inner.paces.record(self.key(), time, turns);
                }
                Ok(self.acquired(token, lease, release_request))
            }
            AcquireResult::Contended { holder } => Err(LockError::Contended {
                key: self.key().text(),
                holder: holder.map(|seen| Box::new(Holder::new(seen))),
                requested: self.kind(),
            }),
            AcquireResult::QueueFull { holder, rank } => Err(LockError::QueueFull {
                key: self.key().text(),
                position: rank,
                holder: holder.map(|seen| Box::new(Holder::new(seen))),
                requested: self.kind(),
                pace: self.inner.paces.of(self.key()),
            }),
            AcquireResult::TimedOut {
                waited,
                holder,
                rank,
            } => {
                if holder.as_ref().is_some_and(|seen| seen.is_own) {
                    let lock = self.inner.reporter.id(self.key()).of_kind(self.kind());
                    let event = LockEvent::HeldByThisProcess { lock };
                    self.inner.reporter.emit(&event);
                }
                Err(LockError::Timeout {
                    key: self.key().text(),
                    waited,
                    holder: holder.map(|seen| Box::new(Holder::new(seen))),
                    requested: self.kind(),
                    position: rank,
                })
            }
            AcquireResult::Failed(failure) => {
                let error = error(self.acquisition.sent(), failure);
                Err(self.inner.explained(error))
            }
        }
    }

    fn acquired(
        &self,
        token: Option<FencingToken>,
        lease: Lease,
        release_request: ReleaseRequest,
    ) -> Acquired {
        let held = Arc::new(HeldLock::new(
            &release_request,
            token,
            self.inner.clock(),
            lease,
            Arc::clone(&self.inner.reporter),
            self.inner.process(),
        ));
        Acquired::new(Arc::clone(&self.inner), held, release_request)
    }
}

fn error(sent: &SentAcquires, failure: AcquireFailure<LockError>) -> LockError {
    let key = &sent.key;
    match failure {
        AcquireFailure::Backend(error) => error,
        AcquireFailure::Done { holder } => LockError::done(key.text(), holder),
        AcquireFailure::NoExpiry { value } => foreign_key::no_expiry(key, &value),
        // The lock that the caller had is gone.
        AcquireFailure::ForeignType { .. } | AcquireFailure::NotOwner if sent.is_exchange() => {
            LockError::TicketEnded {
                key: key.text(),
                reason: LossReason::Removed,
            }
        }
        AcquireFailure::ForeignType { .. } if sent.purpose() == Purpose::Downgrade => {
            LockError::Lost {
                key: key.text(),
                reason: LossReason::Replaced,
            }
        }
        AcquireFailure::ForeignType { found } => foreign_key::of_type(key, &found),
        AcquireFailure::DeadWaiters => LockError::backend(
            BackendErrorKind::TimedOut,
            "the queue of the lock holds very many dead waiters, which are still being removed",
        ),
        AcquireFailure::LateGrant => LockError::backend(
            BackendErrorKind::TimedOut,
            "the server's reply came after the end of the lease that it granted",
        ),
        AcquireFailure::NotOwner => LockError::Lost {
            key: key.text(),
            reason: LossReason::Removed,
        },
        AcquireFailure::ShuttingDown => LockError::ShuttingDown,
        AcquireFailure::ClockJumps => LockError::backend(
            BackendErrorKind::Other,
            "the lock server rejects each command as late: its clock keeps jumping forward",
        ),
    }
}

impl Drop for PendingAcquire {
    fn drop(&mut self) {
        // A forked child has a copy, and must not touch the locks of its parent. The child has only the thread that
        // forked, so it has no copy of what is inside `finish`, where the lock became the guard's.
        if self.acquisition.is_guarded() || self.inner.check_process().is_ok() {
            self.end();
            self.inner.activity.end_acquire(&self.inner.reporter);
        }
    }
}
