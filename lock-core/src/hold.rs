//! A held lock, as its guard, its watchers and the keeper see it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::backend::{Renewal, Renewed};
use crate::clock::{Clock, Moment};
use crate::counts::Counters;
use crate::error::LockError;
use crate::inbox::locked;
use crate::key::LockKey;
use crate::lease::{Lease, Wish};
use crate::nonce::Nonce;
use crate::token::FencingToken;
use tracing::{debug, warn};

/// One held lock.
#[derive(Debug)]
pub(crate) struct Hold {
    pub(crate) key: LockKey,
    pub(crate) nonce: Nonce,
    pub(crate) token: Option<FencingToken>,
    pub(crate) clock: Clock,
    counters: Arc<Counters>,
    state: Mutex<State>,
    /// Where it stands in the keeper's schedule, as nanoseconds; zero when it does not.
    pub(crate) scheduled: AtomicU64,
}

#[derive(Debug)]
struct State {
    lease: Lease,
    loss_is_counted: bool,
    /// Those who want to hear of the loss.
    listeners: Vec<(u64, Waker)>,
    next_listener: u64,
}

impl Hold {
    pub(crate) fn new(
        key: LockKey,
        nonce: Nonce,
        token: Option<FencingToken>,
        clock: Clock,
        lease: Lease,
        counters: Arc<Counters>,
    ) -> Self {
        Self {
            key,
            nonce,
            token,
            clock,
            counters,
            state: Mutex::new(State {
                lease,
                loss_is_counted: false,
                listeners: Vec::new(),
                next_listener: 0,
            }),
            scheduled: AtomicU64::new(0),
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        let now = self.clock.now();
        locked(&self.state).lease.is_lost(now)
    }

    pub(crate) fn remaining(&self) -> Duration {
        let now = self.clock.now();
        locked(&self.state).lease.remaining(now)
    }

    pub(crate) fn is_released(&self) -> bool {
        locked(&self.state).lease.is_released()
    }

    /// When the lease ends by itself, as known now.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        locked(&self.state).lease.deadline()
    }

    pub(crate) fn due(&self) -> Option<Moment> {
        locked(&self.state).lease.due()
    }

    pub(crate) fn wish(&self, now: Moment) -> Wish {
        self.change(|lease| lease.wish(now))
    }

    pub(crate) fn renewal(&self) -> Renewal {
        let now = self.clock.now();
        let state = locked(&self.state);
        Renewal {
            key: self.key.clone(),
            nonce: self.nonce,
            ttl: state
                .lease
                .terms()
                .renewed_ttl(state.lease.left_to_hold(now)),
            terms: state.lease.terms(),
        }
    }

    /// What a renewal said. A failed one is repeated at `again_at`.
    pub(crate) fn renewal_said(&self, answer: Renewed, again_at: Moment) -> Result<(), LockError> {
        let now = self.clock.now();
        match answer {
            Renewed::Held {
                sent, remaining, ..
            } => {
                self.change(|lease| lease.renewed(sent, remaining, now));
                if self.is_lost() {
                    return Err(LockError::Lost);
                }
                Ok(())
            }
            Renewed::NotOurs => {
                self.change(Lease::refused);
                if self.is_released() {
                    debug!(key = %self.key, "renewed after its release");
                } else {
                    warn!(key = %self.key, "lock lost: the server says that it is not ours");
                }
                Err(LockError::Lost)
            }
            Renewed::Failed(error) => {
                warn!(key = %self.key, %error, "renewal failed; it is repeated until the lease ends");
                self.counters.renewal_failed();
                self.change(|lease| lease.unanswered(again_at));
                Err(error)
            }
        }
    }

    /// The holder gives it up. False when that was done before.
    pub(crate) fn release(&self) -> bool {
        self.change(Lease::release)
    }

    /// Ready once the lock is lost, and never after it was released.
    pub(crate) fn poll_lost(&self, cx: &Context<'_>, listener: &mut Option<u64>) -> Poll<()> {
        let now = self.clock.now();
        let mut state = locked(&self.state);
        if state.lease.is_lost(now) {
            return Poll::Ready(());
        }
        let id = *listener.get_or_insert_with(|| {
            state.next_listener += 1;
            state.next_listener
        });
        match state.listeners.iter_mut().find(|(known, _)| *known == id) {
            Some((_, waker)) => waker.clone_from(cx.waker()),
            None => state.listeners.push((id, cx.waker().clone())),
        }
        Poll::Pending
    }

    pub(crate) fn forget_listener(&self, id: u64) {
        locked(&self.state)
            .listeners
            .retain(|(known, _)| *known != id);
    }

    pub(crate) fn scheduled_at(&self) -> Option<Moment> {
        match self.scheduled.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(Moment::from_nanos(nanos)),
        }
    }

    pub(crate) fn set_scheduled(&self, at: Option<Moment>) {
        let nanos = at.map_or(0, Moment::as_nanos);
        self.scheduled.store(nanos, Ordering::Relaxed);
    }

    /// Changes the lease, and tells the listeners if that lost it.
    fn change<T>(&self, change: impl FnOnce(&mut Lease) -> T) -> T {
        let now = self.clock.now();
        let mut state = locked(&self.state);
        // A release hides that the lease had ended before.
        let was_lost = state.lease.is_lost(now);
        let result = change(&mut state.lease);
        let is_lost = state.lease.is_lost(now);
        if (was_lost || is_lost) && !std::mem::replace(&mut state.loss_is_counted, true) {
            self.counters.lost();
        }
        let woken = if is_lost {
            std::mem::take(&mut state.listeners)
        } else {
            Vec::new()
        };
        drop(state);
        for (_, waker) in woken {
            waker.wake();
        }
        result
    }
}
