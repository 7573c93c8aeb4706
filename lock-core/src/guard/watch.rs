//! The state of a held lock, or of a set, for tasks that work under it and must not release it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::{LockGuard, PerLock};
use crate::runtime::held_lock::{Awaited, HeldLock, ListenerId};
use lock_protocol::clock::Moment;
use lock_protocol::fencing_token::FencingToken;
use lock_protocol::kind::Kind;
use lock_protocol::loss::LossReason;

/// Shows the state of a held lock, or of a set of locks, to tasks that work under it and must not release it. Made by
/// [`LockGuard::watch`] and [`LockSet::watch`](crate::LockSet::watch).
///
/// A set is lost as soon as one of its locks is lost, and held while all of them are.
///
/// ```
/// # use lock_core::{LockError, LockManager};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let locks = LockManager::in_memory();
/// let both = locks.lock_all(["account:7", "account:3"]).acquire().await?;
/// let watch = both.watch();
/// assert!(watch.is_held() && !watch.remaining().is_zero());
/// assert_eq!(watch.fencing_token_of("account:7"), both.fencing_token_of("account:7"));
/// both.release().await?;
/// assert!(!watch.is_held() && !watch.is_lost());
/// assert_eq!(watch.loss_reason(), None);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LockWatch {
    locks: PerLock<Arc<HeldLock>>,
    needs_expiry_timer: bool,
}

impl LockWatch {
    pub(super) fn of<'g>(guards: impl IntoIterator<Item = &'g LockGuard>) -> Self {
        let mut needs_expiry_timer = false;
        let locks = guards.into_iter().map(|guard| {
            needs_expiry_timer |= guard.acquired.inner.needs_expiry_timer();
            Arc::clone(guard.held())
        });
        Self {
            locks: locks.collect(),
            needs_expiry_timer,
        }
    }

    pub(crate) fn locks(&self) -> &[Arc<HeldLock>] {
        self.locks.as_slice()
    }

    /// Returns the lock that the state is about: of a set, the lost one, or else the first.
    fn shown(&self) -> Option<&Arc<HeldLock>> {
        let lost = match self.locks() {
            [_one] => None,
            // The reason stays after the release.
            all => all.iter().find(|lock| lock.loss_reason().is_some()),
        };
        lost.or(self.locks().first())
    }

    /// Returns the key that is locked, as [`LockGuard::key`] does. For a set, this is the key of the lock that was lost,
    /// or else the first key.
    #[must_use]
    pub fn key(&self) -> &str {
        self.shown().map_or("", |lock| lock.key.as_str())
    }

    /// Returns the name of the lock, as [`LockGuard::name`] does. For a set, this is the name of the lock that was lost,
    /// or else the first name in the order of the keys.
    #[must_use]
    pub fn name(&self) -> &str {
        self.shown().map_or("", |lock| lock.key.name())
    }

    /// Returns the kind of the lock, as [`LockGuard::kind`] does. The locks of a set have the same kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.shown().map_or(Kind::Exclusive, |lock| lock.kind())
    }

    /// Returns whether the lock, or one of a set, is lost, as [`LockGuard::is_lost`] does. A released lock is not lost:
    /// see [`is_held`](Self::is_held).
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.locks().iter().any(|lock| lock.is_lost())
    }

    /// Returns why the lock was lost, as [`LockGuard::loss_reason`] does. Also returns the reason after
    /// the guard of a lost lock was dropped. For a set, this is the reason of the lost lock whose key comes first.
    #[must_use]
    pub fn loss_reason(&self) -> Option<LossReason> {
        self.locks().iter().find_map(|lock| lock.loss_reason())
    }

    /// Returns whether the lock, or each lock of a set, is certainly held now: neither lost nor released.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Returns a future that completes when the lock, or one of a set, is lost, as [`LockGuard::lost`] does.
    ///
    /// # Panics
    /// As for [`LockGuard::lost`].
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on the lock. A later future reports the same loss.
    pub fn lost(&self) -> LossSignal {
        self.signal(Awaited::Loss)
    }

    /// Returns whether the lock, or one of a set, is about to be lost, as [`LockGuard::is_at_risk`] does.
    #[must_use]
    pub fn is_at_risk(&self) -> bool {
        self.locks().iter().any(|lock| lock.is_at_risk())
    }

    /// Returns a future that completes when the lock, or one of a set, is at risk or lost, as [`LockGuard::at_risk`] does.
    ///
    /// # Panics
    /// As for [`LockGuard::at_risk`].
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on the lock. A later future reports the same risk, if it lasts.
    pub fn at_risk(&self) -> LossSignal {
        self.signal(Awaited::Risk)
    }

    fn signal(&self, awaited: Awaited) -> LossSignal {
        let listen = |lock| Listener::new(lock, awaited, self.needs_expiry_timer);
        LossSignal(self.locks().iter().map(listen).collect())
    }

    /// Returns how long the lock, or each lock of a set, is certainly held, as [`LockGuard::remaining`] does. Returns zero
    /// after the release too.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let remaining = self.locks().iter().map(|lock| lock.remaining());
        remaining.min().unwrap_or_default()
    }

    /// Returns the token of this grant, as [`LockGuard::fencing_token`] does. Returns `None` for a set of several locks,
    /// because each of them has its own: see [`fencing_token_of`](Self::fencing_token_of).
    #[must_use]
    pub fn fencing_token(&self) -> Option<FencingToken> {
        match self.locks() {
            [one] => one.token,
            _ => None,
        }
    }

    /// Returns the token of the lock with this name, as [`LockSet::fencing_token_of`](crate::LockSet::fencing_token_of) does.
    #[must_use]
    pub fn fencing_token_of(&self, name: impl AsRef<str>) -> Option<FencingToken> {
        let name = name.as_ref();
        let lock = self.locks().iter().find(|lock| lock.key.name() == name)?;
        lock.token
    }
}

impl fmt::Debug for LockWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys: Vec<_> = self.locks().iter().map(|lock| lock.key.as_str()).collect();
        f.debug_struct("LockWatch")
            .field("keys", &keys)
            .field("is_lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}

/// Completes when a lock, or one lock of a set, is lost: made by [`LockGuard::lost`], [`LockWatch::lost`] and their
/// siblings. Or already when a lock is at risk of that: made by [`LockGuard::at_risk`] and its siblings.
///
/// ```
/// # use lock_core::{LockError, LockManager, Renew};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let locks = LockManager::in_memory();
/// let request = locks.lock_all(["account:7", "account:3"]).renew(Renew::Never);
/// let both = request.ttl(Duration::from_millis(100)).acquire().await?;
/// let transfer = std::future::pending::<&str>();
/// let ended = tokio::select! {
///     () = both.lost() => "stopped",
///     done = transfer => done,
/// };
/// assert_eq!(ended, "stopped");
/// # Ok(())
/// # }
/// ```
#[must_use = "a future does nothing unless it is polled"]
pub struct LossSignal(PerLock<Listener>);

impl LossSignal {
    /// Completes at the loss of one of the locks.
    pub(crate) fn of<'g>(guards: impl IntoIterator<Item = &'g LockGuard>) -> Self {
        Self::awaiting(Awaited::Loss, guards)
    }

    /// Completes when one of the locks is at risk, or lost.
    pub(super) fn of_risk<'g>(guards: impl IntoIterator<Item = &'g LockGuard>) -> Self {
        Self::awaiting(Awaited::Risk, guards)
    }

    fn awaiting<'g>(awaited: Awaited, guards: impl IntoIterator<Item = &'g LockGuard>) -> Self {
        let listen = |guard: &LockGuard| {
            let needs_expiry_timer = guard.acquired.inner.needs_expiry_timer();
            Listener::new(guard.held(), awaited, needs_expiry_timer)
        };
        Self(guards.into_iter().map(listen).collect())
    }
}

impl Future for LossSignal {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut listeners = self.0.as_mut_slice().iter_mut();
        if listeners.any(|listener| listener.poll(cx).is_ready()) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

impl fmt::Debug for LossSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listeners = self.0.as_slice().iter();
        let keys = listeners.map(|listener| listener.held.key.as_str());
        f.debug_list().entries(keys).finish()
    }
}

/// Listens for the loss of one lock, or for its risk.
struct Listener {
    held: Arc<HeldLock>,
    id: Option<ListenerId>,
    awaited: Awaited,
    /// The background worker does not watch the end of this lease, so a timer of the caller's runtime
    /// does.
    needs_expiry_timer: bool,
    timer: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl Listener {
    fn new(held: &Arc<HeldLock>, awaited: Awaited, needs_expiry_timer: bool) -> Self {
        Self {
            held: Arc::clone(held),
            id: None,
            awaited,
            needs_expiry_timer,
            timer: None,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self
                .held
                .poll_for(self.awaited, cx, &mut self.id)
                .is_ready()
            {
                return Poll::Ready(());
            }
            let needs_timer = self.needs_expiry_timer || self.awaited == Awaited::Risk;
            // The lease was extended after the timer was set: set the timer again.
            if !needs_timer || self.set_timer(cx).is_pending() {
                return Poll::Pending;
            }
            self.timer = None;
        }
    }

    /// Returns the next moment that no one else watches. A change of the lease that makes it come earlier wakes the
    /// listener.
    fn next_moment(&self) -> Option<Moment> {
        let end = if self.needs_expiry_timer {
            self.held.deadline().filter(|_| !self.held.is_released())
        } else {
            None
        };
        let risk = match self.awaited {
            Awaited::Loss => None,
            Awaited::Risk => self.held.at_risk_from(),
        };
        end.into_iter().chain(risk).min()
    }

    fn set_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // While the machine is suspended, tokio's timers stand still, and the manager's clock does not. Then it is the end
        // of the renewal, which is overdue at once, that wakes the listener.
        let now = self.held.clock.now();
        let left = self.next_moment().map(|moment| moment.since(now));
        // A moment beyond the range of the clock never comes.
        let at = left.and_then(|left| tokio::time::Instant::now().checked_add(left));
        let Some(at) = at else {
            self.timer = None;
            return Poll::Pending;
        };
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        if timer.deadline() != at {
            timer.as_mut().reset(at);
        }
        timer.as_mut().poll(cx)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.held.forget_listener(id);
        }
    }
}
