//! An acquired lock that releases itself when it is dropped: what the public guard wraps.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{InvalidTicketReason, LockError};
use crate::runtime::held_lock::HeldLock;
use crate::runtime::inner::ManagerInner;
use crate::runtime::reentrancy;
use lock_protocol::cleanup::{Keep, ReleaseOutcome, ReleaseRequest, ReleaseSubject};
use lock_protocol::kind::{InvalidKindReason, Kind};
use lock_protocol::ttl::whole_millis;

/// An acquired lock, with the duty to release it.
pub(crate) struct Acquired {
    pub(crate) inner: Arc<ManagerInner>,
    pub(crate) held: Arc<HeldLock>,
    /// The release that is still to be sent; `None` once the server has confirmed it.
    release_request: Option<ReleaseRequest>,
}

impl Acquired {
    /// Hands the lock to the background worker, which renews it from now on.
    pub(crate) fn new(
        inner: Arc<ManagerInner>,
        held: Arc<HeldLock>,
        release_request: ReleaseRequest,
    ) -> Self {
        inner.track(&held);
        inner.activity.begin_hold();
        Self {
            inner,
            held,
            release_request: Some(release_request),
        }
    }

    /// Keeps the key locked for at least this long from now on, even if the release comes earlier.
    pub(crate) fn set_min_hold(&mut self, min_hold: Duration) {
        if let Some(request) = &mut self.release_request {
            request.keep = Keep::Until(self.held.clock.now().plus(min_hold));
        }
    }

    /// Lets the key say that the work is done, once [`complete`](Self::complete) was called, until this time since the
    /// grant has passed.
    pub(crate) fn set_once_per(&mut self, period: Duration) {
        if let Some(request) = &mut self.release_request {
            let period_ms = whole_millis(period);
            request.keep = Keep::OncePer { period_ms };
        }
    }

    /// Records that the work has succeeded. Each release from now on says so, also the one of the drop. Returns false if
    /// the lock was requested without a period.
    pub(crate) fn complete(&self) -> bool {
        let keep = self.release_request.as_ref().map(|request| request.keep);
        let has_period = matches!(keep, Some(Keep::OncePer { .. }));
        if has_period {
            self.held.complete();
        }
        has_period
    }

    /// Returns the release that is still to be sent; `None` once the server has confirmed it.
    pub(super) fn release_request(&self) -> Option<ReleaseRequest> {
        let mut request = self.release_request.clone()?;
        self.held.mark_done(&mut request);
        Some(request)
    }

    /// Enters the scope of the body. While the returned scope lives, an acquire of this lock on
    /// this task fails at once.
    pub(crate) fn enter(&self) -> reentrancy::BodyScope {
        let entered = reentrancy::enter(
            self.inner.manager_id(),
            self.held.key.text(),
            self.held.kind(),
        );
        if self.held.record().is_some() {
            return entered.in_span(Arc::clone(&self.held));
        }
        entered
    }

    /// Sends the release and returns its outcome. The caller passes the outcome to
    /// [`finish_release`](Self::finish_release).
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: the drop of `self` releases in the background.
    pub(crate) fn send_release(
        &self,
    ) -> impl Future<Output = Result<ReleaseOutcome, LockError>> + Send + use<> {
        let inner = Arc::clone(&self.inner);
        let held = Arc::clone(&self.held);
        let request = self.release_request();
        async move {
            let Some(request) = request else {
                return Ok(ReleaseOutcome::already_released());
            };
            // A forked child has a copy, and must not release the lock of its parent.
            inner.check_process()?;
            let validity = held.validity();
            inner.untrack(&held);
            let limit = inner.settings.command_timeout;
            let keep = request.keep;
            let result = inner.release(request, validity, limit).await;
            held.on_release(&result, keep);
            result
        }
    }

    /// Checks that the lock is exclusive and can become a read lock.
    pub(crate) fn check_downgrade(&self) -> Result<(), InvalidKindReason> {
        let keeps = |request: &ReleaseRequest| request.keep != Keep::Nothing;
        if self.held.kind() != Kind::Exclusive || self.release_request.as_ref().is_some_and(keeps) {
            return Err(InvalidKindReason::Downgrade);
        }
        let has_readers = self
            .held
            .key
            .dialect()
            .capabilities()
            .supports_shared_kinds()
            && self.inner.store.traits().one_server_per_lock;
        if has_readers {
            Ok(())
        } else {
            Err(InvalidKindReason::Dialect)
        }
    }

    /// Checks that the lock can be handed over by a ticket.
    pub(crate) fn check_ticket(&self) -> Result<(), InvalidTicketReason> {
        if self.held.kind() != Kind::Exclusive {
            return Err(InvalidTicketReason::Kind);
        }
        match self.release_request.as_ref().map(|request| request.keep) {
            Some(Keep::Nothing) | None => {}
            Some(Keep::Until(_)) => return Err(InvalidTicketReason::MinHold),
            Some(Keep::OncePer { .. } | Keep::Done { .. }) => {
                return Err(InvalidTicketReason::OncePer);
            }
        }
        self.inner.check_exchange(self.held.key.dialect())
    }

    /// Ends the guard: another owner id has its lock. Copies of its acquire that may still arrive are undone in the
    /// background.
    pub(crate) fn finish_exchange(&mut self) {
        self.held.end_by_ticket();
        match &mut self.release_request {
            Some(request) if !request.is_plain(0) => request.subject = ReleaseSubject::Acquire,
            request => {
                *request = None;
                self.inner.notifications.remove(self.held.owner_id);
            }
        }
    }

    /// Ends the renewals, and hands over the duty to release the lock. Returns `None` if there is none.
    pub(crate) fn give_up_release(&mut self) -> Option<ReleaseRequest> {
        let request = self.release_request.take()?;
        self.inner.untrack(&self.held);
        Some(request)
    }

    /// Records the outcome of a release. After that the drop does nothing, unless a sent copy of
    /// the acquire may still take effect or dead waiters are left in the queue.
    pub(crate) fn finish_release(&mut self, outcome: &ReleaseOutcome) {
        let now = self.held.clock.now();
        if let Some(request) = self.release_request.as_mut().filter(|_| outcome.was_owner) {
            // What is still to be undone leaves nothing in the key.
            request.keep = Keep::Nothing;
        }
        self.release_request
            .take_if(|request| request.is_finished_by(outcome, now));
    }
}

impl Drop for Acquired {
    fn drop(&mut self) {
        // A forked child has a copy, and must not release the lock of its parent.
        if self.inner.check_process().is_err() {
            return;
        }
        if let Some(mut request) = self.release_request.take() {
            self.inner.untrack(&self.held);
            self.held.mark_done(&mut request);
            if self.held.is_end_reported() {
                request.subject = ReleaseSubject::ReportedGuard;
            }
            self.inner.release_in_background(request);
        }
        self.held.end_guard();
        // Last: a shutdown that sees no held lock also sees the release.
        self.inner.activity.end_hold(&self.inner.reporter);
    }
}
