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
    /// A server without memory refuses to be asked, but renews: it tells whether the lock was
    /// handed to us while nothing could be pushed.
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

    /// A lock by a reply. One that came too late is let go.
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
            debug!(%key, "a grant came too late and is let go");
        });
        self.pending.restart_with_new_owner_id();
        self.poll_schedule.at_once(self.clock().now());
        None
    }

    /// A lock by a push. Where it cannot be said for how long, or somebody else may have written
    /// it, a renewal tells; one that is over is let go.
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

    /// Whether the server would have written that. Anybody who may publish on our channel, and
    /// knows the owner id, can write anything.
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
                warn!(%key, "a grant that the server would not have written is confirmed first");
            });
        }
        is_plausible
    }

    /// A renewal tells whether it is ours. Where that has no answer, asking again will tell. The
    /// place in the queue stays: there need not have been a grant at all.
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
