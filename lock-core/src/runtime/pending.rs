//! An acquire that is cancelled when it is dropped.

use std::sync::Arc;
use std::time::Duration;

use tracing::debug;

use crate::backend::{AcquireOutcome, Acquisition, ReleaseRequest};
use crate::error::LockError;
use crate::protocol::clock::Moment;
use crate::protocol::fencing_token::FencingToken;
use crate::protocol::lease::Lease;
use crate::protocol::poll_schedule::{LocalPosition, ObservedExpiry};
use crate::protocol::renew::Renew;
use crate::runtime::acquired::Acquired;
use crate::runtime::held_lock::HeldLock;
use crate::runtime::inner::ManagerInner;
use crate::runtime::notifications::{QueuePlace, WaiterSlot};

/// An acquisition that is cancelled when it is dropped, at any await.
pub(crate) struct PendingAcquire {
    pub(crate) inner: Arc<ManagerInner>,
    pub(crate) acquisition: Acquisition,
    pub(crate) slot: Option<Arc<WaiterSlot>>,
    /// Its place in the local queue, once the server has queued it.
    place: Option<QueuePlace>,
}

impl PendingAcquire {
    pub(crate) fn new(inner: Arc<ManagerInner>, acquisition: Acquisition) -> Self {
        // Registered before anything is sent: a notification may overtake the reply.
        let slot = if acquisition.waits_until.is_some() {
            Some(inner.notifications.register_waiter(acquisition.owner_id))
        } else {
            inner.notifications.register(acquisition.owner_id);
            None
        };
        Self {
            inner,
            acquisition,
            slot,
            place: None,
        }
    }

    pub(crate) fn release_request(&self) -> ReleaseRequest {
        ReleaseRequest {
            key: self.acquisition.key.clone(),
            owner_id: self.acquisition.owner_id,
            ttl: self.acquisition.lease_config.ttl,
            entries: self.acquisition.entries(),
            origin: self.acquisition.origin,
            unconfirmed_until_ms: self.acquisition.unconfirmed_until_ms(),
            min_hold_until: None,
        }
    }

    pub(crate) async fn send(&mut self, limit: Duration) -> Result<AcquireOutcome, LockError> {
        let inner = Arc::clone(&self.inner);
        inner.backend.acquire(&mut self.acquisition, limit).await
    }

    pub(crate) fn into_acquired(mut self, token: Option<FencingToken>, lease: Lease) -> Acquired {
        let mut release_request = self.release_request();
        // Any connection will do: the acquire got its reply, so the release cannot overtake it.
        release_request.origin = None;
        if self.place.is_some() {
            let at = self.inner.clock().now();
            let ends = lease.deadline();
            let observed_expiry = ends.map(|holder_expires_at| ObservedExpiry {
                at,
                holder_expires_at,
            });
            self.leave_queue(observed_expiry, token);
        }
        self.acquisition.hand_to_guard();
        let held = Arc::new(HeldLock::new(
            self.acquisition.key.clone(),
            self.acquisition.owner_id,
            token,
            self.inner.clock(),
            lease,
            Arc::clone(&self.inner.counters),
            self.inner.process(),
        ));
        let acquired = Acquired::new(Arc::clone(&self.inner), Arc::clone(&held), release_request);
        self.inner.counters.trace(|| {
            debug!(key = %held.key, token = token.map(tracing::field::display), "lock acquired");
        });
        acquired
    }

    /// Records that the server queued the waiter and named the holder. Returns the waiter's
    /// position among the waiters of this manager.
    pub(crate) fn enter_queue(
        &mut self,
        observed_expiry: Option<ObservedExpiry>,
        token: Option<FencingToken>,
    ) -> LocalPosition {
        let Some(slot) = &self.slot else {
            return LocalPosition::First;
        };
        let key = self.acquisition.key.text();
        let notifications = &self.inner.notifications;
        let place = *self
            .place
            .get_or_insert_with(|| notifications.enter_queue(&key, slot));
        notifications.observe(&key, place, observed_expiry, token)
    }

    /// Leaves the local queue. The next waiter of this manager becomes the first, if this one was.
    pub(crate) fn leave_queue(
        &mut self,
        observed_expiry: Option<ObservedExpiry>,
        token: Option<FencingToken>,
    ) {
        if let Some(place) = self.place.take() {
            let key = self.acquisition.key.as_str();
            self.inner
                .notifications
                .leave_queue(key, place, observed_expiry, token);
        }
    }

    pub(crate) fn lease(&self, sent: Moment, remaining: Duration) -> Lease {
        let lease_config = self.acquisition.lease_config;
        if self.is_held_without_renewal() {
            Lease::endless(lease_config, self.inner.clock().now())
        } else {
            Lease::confirmed(lease_config, sent, remaining)
        }
    }

    pub(crate) fn is_held_without_renewal(&self) -> bool {
        self.inner.backend.holds_without_renewal()
            && self.acquisition.lease_config.renew != Renew::Never
    }

    /// Continues under a new owner id. The drop of the old acquisition cancels it.
    pub(crate) fn restart_with_new_owner_id(&mut self) {
        *self = Self::new(
            Arc::clone(&self.inner),
            self.acquisition.with_new_owner_id(),
        );
    }
}

impl Drop for PendingAcquire {
    fn drop(&mut self) {
        // A forked child has a copy, and must not touch the locks of its parent.
        if self.acquisition.is_owned_by_guard() || self.inner.check_process().is_err() {
            return;
        }
        self.leave_queue(None, None);
        if self.acquisition.is_open() {
            self.inner.release_in_background(self.release_request());
        } else {
            self.inner.notifications.remove(self.acquisition.owner_id);
        }
    }
}
