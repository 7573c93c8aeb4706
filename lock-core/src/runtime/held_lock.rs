//! A held lock, shared by its guard, its watchers and the background worker.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::error::LockError;
use crate::runtime::deadlines::Place;
use crate::runtime::records::HoldRecord;
use crate::store::Renewal;
use crate::sync::{Mutex, Process};
use crate::telemetry::{HoldEnd, LockEvent, LockId, Reporter};
use lock_protocol::acquisition::RenewOutcome;
use lock_protocol::cleanup::{Keep, ReleaseOutcome, ReleaseRequest, Validity};
use lock_protocol::clock::{Clock, Moment};
use lock_protocol::fencing_token::FencingToken;
use lock_protocol::key::LockKey;
use lock_protocol::kind::Kind;
use lock_protocol::lease::{Lease, LeaseAction, LeaseConfig, LeaseEnds};
use lock_protocol::loss::LossReason;
use lock_protocol::owner_id::OwnerId;

mod listeners;

use listeners::Listeners;
pub(crate) use listeners::{Awaited, ListenerId};

/// One held lock.
#[derive(Debug)]
pub(crate) struct HeldLock {
    pub(crate) key: LockKey,
    kind: Kind,
    pub(crate) owner_id: OwnerId,
    pub(crate) token: Option<FencingToken>,
    /// The label of the acquire.
    pub(crate) label: Arc<str>,
    pub(crate) clock: Clock,
    reporter: Arc<Reporter>,
    process: Process,
    /// When the command was sent that acquired the lock.
    since: Moment,
    /// `None` if no event had a reader when the lock was acquired.
    record: Option<Box<HoldRecord>>,
    state: Mutex<HeldState>,
    /// Where the background worker has it.
    pub(super) place: Place,
    /// Whether it is the lock of a leader, which holds it for as long as it lives.
    is_of_leader: AtomicBool,
    /// Whether a task renews it, in place of the background worker.
    #[cfg(feature = "testing")]
    has_task: AtomicBool,
}

/// What changes while a lock is held.
#[derive(Debug)]
struct HeldState {
    lease: Lease,
    /// Why the lock was lost. Set when the loss is counted; stays after the release.
    loss: Option<LossReason>,
    /// An event has said that the release failed.
    release_failed: bool,
    /// The work that the lock protects has succeeded.
    is_completed: bool,
    /// The tasks that wait for the loss, or for the risk of one.
    listeners: Listeners,
}

impl HeldState {
    /// Records and counts a loss. Returns its reason, unless a loss was recorded before.
    #[must_use]
    fn lose(&mut self, reason: LossReason, reporter: &Reporter) -> Option<LossReason> {
        if self.loss.is_some() {
            return None;
        }
        reporter.lost();
        self.loss = Some(reason.clone());
        Some(reason)
    }

    /// Records a release that failed. Returns false for a lock that was lost before.
    #[must_use]
    fn fail_release(&mut self) -> bool {
        self.release_failed = true;
        self.loss.is_none()
    }
}

impl HeldLock {
    /// Makes the lock that this request will release.
    pub(crate) fn new(
        release: &ReleaseRequest,
        token: Option<FencingToken>,
        clock: Clock,
        lease: Lease,
        reporter: Arc<Reporter>,
        process: Process,
    ) -> Self {
        let kind = lease.lease_config().kind;
        Self {
            record: HoldRecord::begin(&reporter, &release.key, kind, token, process),
            kind,
            since: lease.confirmed_at(),
            key: release.key.clone(),
            owner_id: release.owner_id,
            token,
            label: Arc::clone(&release.label),
            clock,
            reporter,
            process,
            state: Mutex::new(HeldState {
                lease,
                loss: None,
                release_failed: false,
                is_completed: false,
                listeners: Listeners::default(),
            }),
            place: Place::default(),
            is_of_leader: AtomicBool::new(false),
            #[cfg(feature = "testing")]
            has_task: AtomicBool::new(false),
        }
    }

    pub(crate) fn lost_error(&self) -> LockError {
        LockError::Lost {
            key: self.key.text(),
            // A lock that was released and not lost has no reason: its key is not the caller's any more.
            reason: self.loss_reason().unwrap_or(LossReason::Removed),
        }
    }

    /// Returns whether the lock is valid at the beginning of its release. Records a loss that nobody has noticed yet.
    pub(crate) fn validity(&self) -> Validity {
        if self.is_lost() {
            let _over = self.next_action();
            Validity::Lost
        } else {
            Validity::Valid
        }
    }

    /// Returns the settings and the ends of the lease, for one that continues it.
    pub(crate) fn lease_and_ends(&self) -> (LeaseConfig, LeaseEnds) {
        let state = self.state.lock();
        (state.lease.lease_config(), state.lease.ends())
    }

    /// Returns the kind of the lock.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns whether the lock is lost. Once it is, it stays so until the release, because each change of the lease reads the clock
    /// under the mutex as this does, and a lease that has ended is not renewed.
    pub(crate) fn is_lost(&self) -> bool {
        let state = self.state.lock();
        state.lease.is_lost(self.clock.now())
    }

    pub(crate) fn remaining(&self) -> Duration {
        let state = self.state.lock();
        state.lease.remaining(self.clock.now())
    }

    pub(crate) fn is_released(&self) -> bool {
        self.state.lock().lease.is_released()
    }

    /// Returns when the lease ends without another renewal.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        self.state.lock().lease.deadline()
    }

    pub(crate) fn next_deadline(&self) -> Option<Moment> {
        self.state.lock().lease.next_deadline()
    }

    pub(crate) fn is_at_risk(&self) -> bool {
        let state = self.state.lock();
        state.lease.is_at_risk(self.clock.now())
    }

    /// Returns from when on the lock is at risk without another renewal.
    pub(crate) fn at_risk_from(&self) -> Option<Moment> {
        self.state.lock().lease.at_risk_from()
    }

    /// Notes that a leader has the lock. Its age says nothing.
    pub(crate) fn set_of_leader(&self) {
        self.is_of_leader.store(true, Ordering::Relaxed);
    }

    /// Raises the age of the oldest lock of this template to that of this lock.
    pub(crate) fn add_age(&self, now: Moment, ages: &mut BTreeMap<&'static str, Duration>) {
        if self.is_of_leader.load(Ordering::Relaxed) {
            return;
        }
        let oldest = ages.entry(self.reporter.id(&self.key).name()).or_default();
        *oldest = now.since(self.since).max(*oldest);
    }

    /// Returns whether messages about the releases of these keys concern this lock.
    pub(crate) fn is_released_in(&self, keys: &HashSet<Arc<str>>) -> bool {
        self.key.dialect().notifies_all_waiters() && keys.contains(self.key.as_str())
    }

    /// Returns when the command was sent that confirmed the lease last.
    pub(crate) fn confirmed_at(&self) -> Moment {
        self.state.lock().lease.confirmed_at()
    }

    /// Makes the next renewal due now. Returns whether the lease is renewed at all.
    pub(crate) fn renew_soon(&self, now: Moment) -> bool {
        self.change(|lease, _| lease.renew_soon(now))
    }

    /// Makes an endless lease one that needs renewals: see [`Lease::begin_renewals`].
    #[cfg(feature = "testing")]
    pub(crate) fn begin_renewals(&self) -> bool {
        self.change(Lease::begin_renewals)
    }

    /// Undoes [`begin_renewals`](Self::begin_renewals).
    #[cfg(feature = "testing")]
    pub(crate) fn end_renewals(&self) -> bool {
        self.change(Lease::end_renewals)
    }

    pub(crate) fn next_action(&self) -> LeaseAction {
        self.change(Lease::next_action)
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.state.lock().lease.lease_config().ttl.as_duration()
    }

    pub(crate) fn renewal(&self) -> Renewal {
        let state = self.state.lock();
        Renewal {
            key: self.key.clone(),
            owner_id: self.owner_id,
            ttl: state.lease.renewed_ttl(self.clock.now()),
            lease_config: state.lease.lease_config(),
            label: Arc::clone(&self.label),
            confirmed_at: state.lease.confirmed_at(),
        }
    }

    /// Applies the result of a renewal. A failed renewal is repeated until the lease ends.
    pub(crate) fn apply_renewal(
        &self,
        result: Result<RenewOutcome, LockError>,
    ) -> Result<(), LockError> {
        let lock = self.reporter.id(&self.key).of_kind(self.kind);
        match result {
            Ok(RenewOutcome::Held {
                sent, remaining, ..
            }) => {
                let (late, is_released) = self.change(|lease, now| {
                    let late = lease.is_late(now).then(|| lease.remaining(now));
                    lease.renewed(sent, remaining, now);
                    (late, lease.is_released())
                });
                if self.is_lost() {
                    return Err(self.lost_error());
                }
                if is_released {
                    return Ok(());
                }
                if let Some(record) = &self.record {
                    record.renewed();
                }
                match late {
                    Some(remaining) => self.emit(&LockEvent::RenewalLate { lock, remaining }),
                    None if self.reporter.listens() => self.emit(&LockEvent::Renewed { lock }),
                    None => {}
                }
                Ok(())
            }
            Ok(RenewOutcome::NotOwner(reason)) => {
                self.lose(reason);
                // After a release, the server refuses a renewal that was on its way.
                if !self.is_released() {
                    self.emit(&LockEvent::RenewalRefused { lock });
                }
                Err(self.lost_error())
            }
            Err(error) => {
                if let Some(remaining) = self.remaining_of_hold() {
                    self.reporter.renewal_failed();
                    self.emit(&LockEvent::RenewalFailed {
                        lock,
                        remaining,
                        error: &error,
                    });
                }
                self.change(Lease::unanswered);
                Err(error)
            }
        }
    }

    /// Gives an event to its readers, in the span `lock.hold`.
    fn emit(&self, event: &LockEvent<'_>) {
        let span = self.record.as_ref().and_then(|record| record.span());
        self.reporter.emit_in(span.as_deref(), event);
        self.reporter.drop_span(span);
    }

    /// Returns what is left of the lease; `None` after the release has begun or the loss was reported. The
    /// result of a renewal that was on its way then is of no interest.
    fn remaining_of_hold(&self) -> Option<Duration> {
        let state = self.state.lock();
        let is_over = state.lease.is_released() || state.loss.is_some();
        (!is_over).then(|| state.lease.remaining(self.clock.now()))
    }

    /// Records that the work which the lock protects has succeeded.
    pub(crate) fn complete(&self) {
        self.state.lock().is_completed = true;
    }

    /// Lets a release say that the work is done, if it has succeeded, and the lock was held until now.
    pub(super) fn mark_done(&self, request: &mut ReleaseRequest) {
        if !matches!(request.keep, Keep::OncePer { .. }) {
            return;
        }
        let state = self.state.lock();
        let is_lost = state.loss.is_some() || state.lease.is_lost(self.clock.now());
        if state.is_completed && !is_lost {
            request.keep = request.keep.after_success();
        }
    }

    /// Reports the outcome of a release that left this in the key.
    pub(crate) fn on_release(&self, result: &Result<ReleaseOutcome, LockError>, keep: Keep) {
        let lock = self.reporter.id(&self.key).of_kind(self.kind);
        match result {
            Ok(outcome) if outcome.was_owner => {
                report_success(&self.reporter, lock, keep);
                self.end_released();
            }
            // If the lease had not ended, the key was removed or has another owner. The reply does not say which.
            Ok(_) => self.on_lost_before_release(LossReason::Removed),
            Err(error) => {
                if !self.state.lock().fail_release() {
                    self.emit(&LockEvent::BodyOutlivedLease { lock });
                    return;
                }
                self.emit(&LockEvent::ReleaseFailed {
                    lock,
                    error: Some(error),
                });
                self.end_hold(HoldEnd::ReleaseFailed);
            }
        }
    }

    /// Reports that the release, or the downgrade, came after the loss. The reason is for a loss that was not
    /// reported before.
    pub(crate) fn on_lost_before_release(&self, reason: LossReason) {
        let loss = self.state.lock().lose(reason, &self.reporter);
        self.report_loss(loss);
        let lock = self.reporter.id(&self.key).of_kind(self.kind);
        self.emit(&LockEvent::BodyOutlivedLease { lock });
    }

    /// Returns the reason of a loss without a reply of the server.
    pub(crate) fn own_end(&self) -> LossReason {
        self.state.lock().lease.own_end()
    }

    /// Returns whether an event has said that the lock was lost, or that its release failed.
    pub(crate) fn is_end_reported(&self) -> bool {
        let state = self.state.lock();
        state.loss.is_some() || state.release_failed
    }

    fn end_hold(&self, outcome: HoldEnd) {
        if let Some(record) = &self.record {
            let lock = self.reporter.id(&self.key).of_kind(self.kind);
            let held_for = self.clock.now().since(self.since);
            record.end(&self.reporter, lock, outcome, held_for, self.token);
        }
    }

    /// Reports the end of a lock that was released, unless it was lost. The background worker may just be
    /// reporting the loss.
    fn end_released(&self) {
        let is_lost = self.state.lock().loss.is_some();
        self.end_hold(if is_lost {
            HoldEnd::Lost
        } else {
            HoldEnd::Released
        });
    }

    /// Reports that the lock was handed over by a ticket.
    pub(crate) fn end_by_ticket(&self) {
        self.end_hold(HoldEnd::Ticket);
    }

    /// Ends the span `lock.hold`: the guard is gone. A guard that was dropped counts as released.
    pub(crate) fn end_guard(&self) {
        self.end_released();
        if let Some(record) = &self.record {
            record.close(&self.reporter);
        }
    }

    pub(crate) fn record(&self) -> Option<&HoldRecord> {
        self.record.as_deref()
    }

    pub(crate) fn reporter(&self) -> &Reporter {
        &self.reporter
    }

    /// Releases the lease. Returns false if it was released before.
    pub(crate) fn release(&self) -> bool {
        self.change(|lease, _| lease.release())
    }

    /// Returns ready once the lock is lost, or at risk if that is awaited too. Never returns ready after a release.
    pub(crate) fn poll_for(
        &self,
        awaited: Awaited,
        cx: &Context<'_>,
        listener: &mut Option<ListenerId>,
    ) -> Poll<()> {
        let has_come = |lease: &Lease| {
            let now = self.clock.now();
            lease.is_lost(now) || (awaited == Awaited::Risk && lease.is_at_risk(now))
        };
        {
            let state = self.state.lock();
            if has_come(&state.lease) {
                return Poll::Ready(());
            }
            if state.listeners.has(*listener, cx.waker()) {
                return Poll::Pending;
            }
        }
        // Cloning or dropping a waker runs foreign code, so both happen outside of the mutex.
        let mut waker = Some(cx.waker().clone());
        let replaced;
        {
            let mut state = self.state.lock();
            // It may have come in between, after the listeners were woken.
            if has_come(&state.lease) {
                return Poll::Ready(());
            }
            replaced = waker
                .take()
                .and_then(|waker| state.listeners.put(listener, awaited, waker));
        }
        drop(replaced);
        Poll::Pending
    }

    pub(crate) fn forget_listener(&self, id: ListenerId) {
        if !self.process.is_current() {
            return;
        }
        let removed = self.state.lock().listeners.remove(id);
        drop(removed);
    }

    /// Records whether a task renews the lock. Returns whether one did before.
    #[cfg(feature = "testing")]
    pub(crate) fn set_has_task(&self, has_task: bool) -> bool {
        self.has_task.swap(has_task, Ordering::AcqRel)
    }

    /// Returns why the lock was lost; `None` while it is held, and after a release that came first.
    pub(crate) fn loss_reason(&self) -> Option<LossReason> {
        let state = self.state.lock();
        let is_lost = state.lease.is_lost(self.clock.now());
        let own_end = || is_lost.then(|| state.lease.own_end());
        state.loss.clone().or_else(own_end)
    }

    /// Records that the server refused a renewal for this reason.
    fn lose(&self, reason: LossReason) {
        self.change_for(Some(reason), |lease, _| lease.refused());
    }

    /// Changes the lease, and wakes the listeners if the change lost the lock. The change gets the time.
    fn change<T>(&self, change: impl FnOnce(&mut Lease, Moment) -> T) -> T {
        self.change_for(None, change)
    }

    /// As [`change`](Self::change). The reason is for a lock that this change loses.
    fn change_for<T>(
        &self,
        reason: Option<LossReason>,
        change: impl FnOnce(&mut Lease, Moment) -> T,
    ) -> T {
        let (result, woken, loss) = {
            let mut state = self.state.lock();
            let now = self.clock.now();
            // A release hides that the lease had ended before it.
            let was_lost = state.lease.is_lost(now);
            // Without a listener, nothing needs the risk.
            let is_awaited = !state.listeners.is_empty();
            let risk = is_awaited.then(|| state.lease.at_risk_from()).flatten();
            let result = change(&mut state.lease, now);
            let is_lost = state.lease.is_lost(now);
            let mut loss = None;
            if was_lost || is_lost {
                let own_end = state.lease.own_end();
                let reason = reason.filter(|_| !was_lost).unwrap_or(own_end);
                loss = state.lose(reason, &self.reporter);
            }
            let woken = if is_lost {
                state.listeners.take_all()
            } else if is_awaited && is_earlier(state.lease.at_risk_from(), risk) {
                state.listeners.take_of_risk()
            } else {
                Vec::new()
            };
            (result, woken, loss)
        };
        for waker in woken {
            self.reporter.wake(waker);
        }
        self.report_loss(loss);
        result
    }

    /// Gives the event of a new loss to its readers.
    fn report_loss(&self, new: Option<LossReason>) {
        let Some(reason) = new else {
            return;
        };
        self.emit(&LockEvent::Lost {
            lock: self.reporter.id(&self.key).of_kind(self.kind),
            reason: &reason,
            held_for: self.clock.now().since(self.since),
            token: self.token,
        });
        self.end_hold(HoldEnd::Lost);
    }
}

/// Returns whether a moment has become earlier, or has come into being.
fn is_earlier(new: Option<Moment>, old: Option<Moment>) -> bool {
    new.is_some_and(|new| old.is_none_or(|old| new < old))
}

/// Reports that the server knows of the success of the work, if the release said so.
pub(super) fn report_success(reporter: &Reporter, lock: LockId<'_>, keep: Keep) {
    if let Keep::Done { period_ms } = keep
        && reporter.listens()
    {
        let period = Duration::from_millis(period_ms);
        reporter.emit(&LockEvent::Completed { lock, period });
    }
}

#[cfg(test)]
pub(super) mod tests;
