//! Turns a grant into a lease: by a reply, by a notification, or by a renewal that confirms it.

use std::time::Duration;

use tracing::{debug, warn};

use super::{ConfirmedLease, Waiter};
use crate::backend::{Grant, RenewOutcome, Renewal};
use crate::error::{BackendErrorKind, LockError};
use crate::protocol::clock::Moment;
use crate::protocol::fencing_token::FencingToken;
use crate::protocol::lease::Lease;

impl Waiter {
    /// Renews after an out-of-memory error. Such a server rejects an acquire, but it renews. The
    /// renewal shows whether the lock was granted while the server could publish no notification.
    pub(super) async fn probe_by_renewal(&mut self, error: &LockError) -> Option<ConfirmedLease> {
        let LockError::Backend(error) = error else {
            return None;
        };
        if error.kind() != BackendErrorKind::OutOfMemory
            || self.pending.acquisition.entry().is_none()
        {
            return None;
        }
        let outcome = self.renew().await?;
        self.renewed(&outcome)
    }

    pub(super) async fn renew(&self) -> Option<RenewOutcome> {
        let acquisition = &self.pending.acquisition;
        let renewal = [Renewal {
            key: acquisition.key.clone(),
            owner_id: acquisition.owner_id,
            ttl: acquisition.lease_config.ttl.as_duration(),
            lease_config: acquisition.lease_config,
        }];
        let outcomes = self
            .pending
            .inner
            .backend
            .renew(&renewal, self.limit())
            .await;
        outcomes.into_iter().next()
    }

    pub(super) fn renewed(&mut self, outcome: &RenewOutcome) -> Option<ConfirmedLease> {
        match *outcome {
            RenewOutcome::Held {
                token,
                sent,
                remaining,
            } => self.confirmed(token, sent, remaining),
            RenewOutcome::NotOwner | RenewOutcome::Failed(_) => None,
        }
    }

    /// Returns the lease of a reply. Cancels a lock whose reply came too late.
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
            debug!(%key, "the grant came after the end of its lease and is cancelled");
        });
        self.pending.restart_with_new_owner_id();
        self.poll_schedule.at_once(self.clock().now());
        None
    }

    /// Returns the lease of a grant notification. A renewal confirms it if its end is unknown, if
    /// too little of it is left, or if another client may have forged the notification.
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

    /// Returns whether the server could have sent this grant. Any client that may publish on the
    /// manager's channel and knows the owner id can forge one.
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
                warn!(%key, "the grant is implausible; a renewal confirms it first");
            });
        }
        is_plausible
    }

    /// Confirms a grant by a renewal. Without a reply, the next poll finds out. The queue entry
    /// stays, since there may not have been a grant.
    pub(super) async fn confirm(&mut self) -> Option<ConfirmedLease> {
        let outcome = self.renew().await;
        let confirmed = outcome.and_then(|outcome| self.renewed(&outcome));
        if confirmed.is_none() {
            self.is_owner_id_exposed = true;
            self.poll_schedule.at_once(self.clock().now());
        }
        confirmed
    }
}
