//! What makes a grant a lock: the reply, the notification, or a renewal that confirms it.

use std::time::Duration;

use tracing::{debug, warn};

use super::{ConfirmedLease, Waiter};
use crate::backend::{Grant, RenewOutcome, Renewal};
use crate::error::{BackendErrorKind, LockError};
use crate::protocol::clock::Moment;
use crate::protocol::fencing_token::FencingToken;
use crate::protocol::lease::Lease;

impl Waiter {
    /// Renews, to find out whether a handover gave the lock to this waiter. A server without memory
    /// refuses an acquire, but executes a renewal.
    pub(super) async fn probe_by_renewal(&mut self, error: &LockError) -> Option<ConfirmedLease> {
        let LockError::Backend(error) = error else {
            return None;
        };
        if error.kind() != BackendErrorKind::OutOfMemory
            || self.pending.acquisition.entry().is_none()
        {
            return None;
        }
        let answer = self.renew().await?;
        self.renewed(&answer)
    }

    pub(super) async fn renew(&self) -> Option<RenewOutcome> {
        let acquisition = &self.pending.acquisition;
        let renewal = [Renewal {
            key: acquisition.key.clone(),
            owner_id: acquisition.owner_id,
            ttl: acquisition.lease_config.ttl.as_duration(),
            lease_config: acquisition.lease_config,
        }];
        let answers = self
            .pending
            .inner
            .backend
            .renew(&renewal, self.limit())
            .await;
        answers.into_iter().next()
    }

    pub(super) fn renewed(&mut self, answer: &RenewOutcome) -> Option<ConfirmedLease> {
        match *answer {
            RenewOutcome::Held {
                token,
                sent,
                remaining,
            } => self.confirmed(token, sent, remaining),
            RenewOutcome::NotOwner | RenewOutcome::Failed(_) => None,
        }
    }

    /// Takes a lock that a reply granted. A lease that has ended is released.
    pub(super) fn confirmed(
        &mut self,
        token: Option<FencingToken>,
        sent: Moment,
        remaining: Duration,
    ) -> Option<ConfirmedLease> {
        let lease = self.pending.lease(sent, remaining);
        self.if_valid(token, lease)
    }

    pub(super) fn if_valid(
        &mut self,
        token: Option<FencingToken>,
        lease: Lease,
    ) -> Option<ConfirmedLease> {
        if lease.is_valid(self.clock().now()) {
            return Some(ConfirmedLease { token, lease });
        }
        self.pending.inner.counters.trace(|| {
            let key = &self.pending.acquisition.key;
            debug!(%key, "a grant arrived after its lease; the lock is released");
        });
        self.pending.restart_with_new_owner_id();
        self.poll_schedule.at_once(self.clock().now());
        None
    }

    /// Takes a lock that a notification granted. A renewal confirms it first when the end of its lease
    /// is unknown, or when another client may have forged it.
    pub(super) async fn accept_grant(&mut self, grant: Grant) -> Option<ConfirmedLease> {
        if self.pending.is_held_without_renewal() {
            let lease = Lease::endless(self.pending.acquisition.lease_config, grant.received);
            return self.if_valid(Some(grant.token), lease);
        }
        let now = self.clock().now();
        let until = grant.until.filter(|_| self.is_plausible(&grant));
        match until {
            Some(until) if until.since(now) >= grant.lease / 2 => {
                let lease_config = self.pending.acquisition.lease_config;
                let lease = Lease::handed_over(lease_config, grant.received, grant.lease, until);
                Some(ConfirmedLease {
                    token: Some(grant.token),
                    lease,
                })
            }
            _ => self.confirm().await,
        }
    }

    /// Returns whether the server can have written this grant. Every client that may publish on the
    /// channel and knows the owner id can forge one.
    pub(super) fn is_plausible(&self, grant: &Grant) -> bool {
        let acquisition = &self.pending.acquisition;
        let longest = acquisition.longest_handover();
        let known = self
            .pending
            .inner
            .notifications
            .last_token(acquisition.key.as_str());
        let is_plausible = grant.lease <= longest && known.is_none_or(|known| grant.token >= known);
        if self.is_owner_id_exposed {
            return false;
        }
        if !is_plausible {
            let key = &acquisition.key;
            self.pending.inner.counters.trace(|| {
                warn!(%key, "the server cannot have written this grant; it is confirmed first");
            });
        }
        is_plausible
    }

    /// Renews, to find out whether this waiter owns the lock. Without a reply the next poll finds it
    /// out. The queue entry stays, because the grant may be forged.
    pub(super) async fn confirm(&mut self) -> Option<ConfirmedLease> {
        let answer = self.renew().await;
        let confirmed = answer.and_then(|answer| self.renewed(&answer));
        if confirmed.is_none() {
            self.is_owner_id_exposed = true;
            self.poll_schedule.at_once(self.clock().now());
        }
        confirmed
    }
}
