//! A held lock, shared by its guard, its watchers and the background worker.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::backend::Renewal;
use crate::error::LockError;
use crate::protocol::acquisition::RenewOutcome;
use crate::protocol::clock::{Clock, Moment};
use crate::protocol::fencing_token::FencingToken;
use crate::protocol::key::LockKey;
use crate::protocol::lease::{Lease, LeaseAction};
use crate::protocol::loss::LossReason;
use crate::protocol::owner_id::OwnerId;
use crate::stats::Counters;
use crate::sync::{Mutex, Process};
use tracing::{debug, warn};

/// One held lock.
#[derive(Debug)]
pub(crate) struct HeldLock {
    pub(crate) key: LockKey,
    pub(crate) owner_id: OwnerId,
    pub(crate) token: Option<FencingToken>,
    pub(crate) clock: Clock,
    counters: Arc<Counters>,
    process: Process,
    state: Mutex<HeldState>,
    /// Its time in the background worker's schedule, in nanoseconds; zero if it is not scheduled.
    scheduled: AtomicU64,
    /// Its slot among the young locks, plus one; zero if it is not there. Written under their mutex.
    young_slot: AtomicUsize,
}

#[derive(Debug)]
struct HeldState {
    lease: Lease,
    /// Why the lock was lost. Set when the loss is counted; stays after the release.
    loss: Option<LossReason>,
    /// The wakers of tasks that wait for the loss. A map, since one lock may have thousands.
    listeners: HashMap<u64, Waker>,
    next_listener: u64,
}

impl HeldLock {
    pub(crate) fn new(
        key: LockKey,
        owner_id: OwnerId,
        token: Option<FencingToken>,
        clock: Clock,
        lease: Lease,
        counters: Arc<Counters>,
        process: Process,
    ) -> Self {
        Self {
            key,
            owner_id,
            token,
            clock,
            counters,
            process,
            state: Mutex::new(HeldState {
                lease,
                loss: None,
                listeners: HashMap::new(),
                next_listener: 0,
            }),
            scheduled: AtomicU64::new(0),
            young_slot: AtomicUsize::new(0),
        }
    }

    pub(crate) fn lost_error(&self) -> LockError {
        LockError::Lost {
            key: self.key.text(),
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        let now = self.clock.now();
        self.state.lock().lease.is_lost(now)
    }

    pub(crate) fn remaining(&self) -> Duration {
        let now = self.clock.now();
        self.state.lock().lease.remaining(now)
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

    pub(crate) fn next_action(&self, now: Moment) -> LeaseAction {
        self.change(|lease| lease.next_action(now))
    }

    pub(crate) fn ttl(&self) -> Duration {
        self.state.lock().lease.lease_config().ttl.as_duration()
    }

    pub(crate) fn renewal(&self) -> Renewal {
        let now = self.clock.now();
        let state = self.state.lock();
        Renewal {
            key: self.key.clone(),
            owner_id: self.owner_id,
            ttl: state.lease.renewed_ttl(now),
            lease_config: state.lease.lease_config(),
            confirmed_at: state.lease.confirmed_at(),
        }
    }

    /// Applies the result of a renewal. A failed renewal is repeated until the lease ends.
    pub(crate) fn apply_renewal(
        &self,
        result: Result<RenewOutcome, LockError>,
    ) -> Result<(), LockError> {
        let now = self.clock.now();
        match result {
            Ok(RenewOutcome::Held {
                sent, remaining, ..
            }) => {
                self.change(|lease| lease.renewed(sent, remaining, now));
                if self.is_lost() {
                    return Err(self.lost_error());
                }
                Ok(())
            }
            Ok(RenewOutcome::NotOwner(reason)) => {
                self.lose(reason.clone());
                let is_released = self.is_released();
                self.counters.trace(|| {
                    if is_released {
                        debug!(key = %self.key, "a renewal arrived after the release");
                    } else {
                        warn!(key = %self.key, %reason, "lock lost: the server reports a different owner or none");
                    }
                });
                Err(self.lost_error())
            }
            Err(error) => {
                self.counters.renewal_failed();
                self.change(|lease| lease.unanswered(now));
                self.counters.trace(|| {
                    warn!(key = %self.key, %error, "renewal failed; it is repeated until the lease ends");
                });
                Err(error)
            }
        }
    }

    /// Releases the lease. Returns false if it was released before.
    pub(crate) fn release(&self) -> bool {
        self.change(Lease::release)
    }

    /// Returns ready once the lock is lost. Never returns ready after a release.
    pub(crate) fn poll_lost(&self, cx: &Context<'_>, listener: &mut Option<u64>) -> Poll<()> {
        let now = self.clock.now();
        {
            let state = self.state.lock();
            if state.lease.is_lost(now) {
                return Poll::Ready(());
            }
            let known = listener.and_then(|id| state.listeners.get(&id));
            if known.is_some_and(|waker| waker.will_wake(cx.waker())) {
                return Poll::Pending;
            }
        }
        // Cloning or dropping a waker runs foreign code, so both happen outside of the mutex.
        let mut waker = Some(cx.waker().clone());
        let replaced;
        {
            let mut state = self.state.lock();
            // The lock may have been lost in between, after the listeners were woken.
            if state.lease.is_lost(now) {
                return Poll::Ready(());
            }
            let id = *listener.get_or_insert_with(|| {
                state.next_listener += 1;
                state.next_listener
            });
            replaced = waker
                .take()
                .and_then(|waker| state.listeners.insert(id, waker));
        }
        drop(replaced);
        Poll::Pending
    }

    pub(crate) fn forget_listener(&self, id: u64) {
        if !self.process.is_current() {
            return;
        }
        let removed = self.state.lock().listeners.remove(&id);
        drop(removed);
    }

    pub(crate) fn scheduled_at(&self) -> Option<Moment> {
        match self.scheduled.load(Ordering::SeqCst) {
            0 => None,
            nanos => Some(Moment::from_nanos(nanos)),
        }
    }

    pub(crate) fn set_scheduled(&self, at: Option<Moment>) {
        let nanos = at.map_or(0, Moment::as_nanos);
        self.scheduled.store(nanos, Ordering::SeqCst);
    }

    pub(crate) fn young_slot(&self) -> Option<usize> {
        self.young_slot.load(Ordering::Acquire).checked_sub(1)
    }

    pub(crate) fn set_young_slot(&self, slot: Option<usize>) {
        let number = slot.map_or(0, |slot| slot + 1);
        self.young_slot.store(number, Ordering::Release);
    }

    /// Returns why the lock was lost; `None` while it is held, and after a release that came first.
    pub(crate) fn loss_reason(&self) -> Option<LossReason> {
        let now = self.clock.now();
        let state = self.state.lock();
        let own_end = || state.lease.is_lost(now).then(|| state.lease.own_end());
        state.loss.clone().or_else(own_end)
    }

    /// Records that the server refused a renewal for this reason.
    fn lose(&self, reason: LossReason) {
        self.change_for(Some(reason), Lease::refused);
    }

    /// Changes the lease, and wakes the listeners if the change lost the lock.
    fn change<T>(&self, change: impl FnOnce(&mut Lease) -> T) -> T {
        self.change_for(None, change)
    }

    /// As [`change`](Self::change). The reason is for a lock that this change loses.
    fn change_for<T>(&self, reason: Option<LossReason>, change: impl FnOnce(&mut Lease) -> T) -> T {
        let now = self.clock.now();
        let (result, woken) = {
            let mut state = self.state.lock();
            // A release hides that the lease had ended before it.
            let was_lost = state.lease.is_lost(now);
            let result = change(&mut state.lease);
            let is_lost = state.lease.is_lost(now);
            if (was_lost || is_lost) && state.loss.is_none() {
                let own_end = state.lease.own_end();
                state.loss = Some(reason.filter(|_| !was_lost).unwrap_or(own_end));
                self.counters.lost();
            }
            let woken = is_lost.then(|| std::mem::take(&mut state.listeners));
            (result, woken)
        };
        for waker in woken.into_iter().flat_map(HashMap::into_values) {
            self.counters.wake(waker);
        }
        result
    }
}
