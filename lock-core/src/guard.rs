//! What a caller holds: the guard of one lock, and the guards of a set. They release when they are dropped.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{InvalidOncePerReason, InvalidSetting, LockError};
use crate::runtime::acquired::Acquired;
use crate::runtime::held_lock::HeldLock;
use crate::runtime::reentrancy::BodyScope;
use crate::runtime::set;
use crate::runtime::waiter;
use lock_protocol::cleanup::ReleaseOutcome;
use lock_protocol::fencing_token::FencingToken;
use lock_protocol::kind::Kind;
use lock_protocol::loss::LossReason;
use lock_protocol::ticket::LockTicket;
use lock_protocol::ttl::Ttl;

mod lock_set;
mod watch;

pub use self::lock_set::LockSet;
pub use self::watch::{LockWatch, LossSignal};

/// A held lock. The background worker renews the lock while the guard exists, and dropping the guard
/// releases it.
///
/// [`release`](Self::release) waits until the server confirms the release, and returns an error if
/// the lock was lost before the release. Dropping the guard releases the lock in the background. If
/// the process ends before the server receives that release, the lock expires with its ttl.
///
/// [`is_lost`](Self::is_lost) returns whether the lock is lost, and [`lost`](Self::lost) completes
/// when it is lost. A guard cannot stop a paused process from writing late. To refuse a late write,
/// a resource has to check the [fencing token](Self::fencing_token).
#[must_use = "the lock is released as soon as the guard is dropped"]
pub struct LockGuard {
    acquired: Acquired,
}

impl LockGuard {
    pub(crate) fn new(acquired: Acquired) -> Self {
        Self { acquired }
    }

    /// Returns the key that is locked, including the manager's prefix.
    #[must_use]
    pub fn key(&self) -> &str {
        self.held().key.as_str()
    }

    /// Returns the name of the lock: the key without the manager's prefix.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::builder().prefix("shop:").in_memory()?;
    /// let order = locks.lock("order:42").acquire().await?;
    /// assert_eq!((order.name(), order.key()), ("order:42", "shop:order:42"));
    /// # order.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        self.held().key.name()
    }

    /// Returns the token of this grant. Holders of one group, which are readers or holders of permits that have
    /// the lock together, share one token. An exclusive holder has its own. The token is greater than that of
    /// every earlier group and of every earlier exclusive holder of this key, as long as the
    /// [conditions](crate::guide::guarantees#fencing-tokens-grow) hold.
    ///
    /// Returns `None` in [dialects](crate::dialect::Dialect) without fencing tokens. Two have them:
    /// [`Native`](crate::dialect::Dialect::Native), and [`Redisson`](crate::dialect::Dialect::Redisson) with
    /// [`RedissonLock::Fenced`](crate::dialect::RedissonLock::Fenced), whose tokens begin at 1 again when the server loses
    /// its counter.
    #[must_use]
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.held().token
    }

    /// Returns the kind of the lock.
    ///
    /// ```
    /// # use lock_core::{Kind, LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let held = locks.lock("mailer").permits(4).acquire().await?;
    /// assert_eq!(held.kind(), Kind::Permits { of: 4, weight: 1 });
    /// held.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.held().kind()
    }

    /// Returns how long the lock is certainly held from now on, without a further renewal. Returns
    /// zero when the lock is lost.
    ///
    /// In memory, a lock that is renewed and has no [`max_hold`](crate::LockRequest::max_hold) is
    /// held as long as the guard exists. For such a lock this method returns the ttl.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.held().remaining()
    }

    /// Returns whether the lock is no longer certainly held. This is so when the lease or the
    /// [`max_hold`](crate::LockRequest::max_hold) has ended, or when the reply to a renewal said that the caller
    /// isn't the owner: the key is free, has another owner, or was released by an operator.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.held().is_lost()
    }

    /// Returns why the lock was lost. Returns `None` while it is held.
    ///
    /// A server reports the reason in its reply to a renewal, so by default the holder knows it at most a third of the
    /// ttl after the loss, and with [`Renew::Every`](crate::Renew::Every) at most half. A lease that ended before that
    /// is [`Expired`](LossReason::Expired).
    #[must_use]
    pub fn loss_reason(&self) -> Option<LossReason> {
        self.held().loss_reason()
    }

    /// Returns a future that completes when the lock is lost. It never completes after a release.
    ///
    /// # Panics
    /// For a lock in memory that has a `max_hold` or is not renewed, polling the future panics
    /// outside of a tokio runtime. A tokio timer detects the end of such a lease.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on the lock. A later future reports the same loss.
    pub fn lost(&self) -> LossSignal {
        LossSignal::of([self])
    }

    /// Returns whether the lock is about to be lost: less than half of its lease is left, and its renewal has failed or is
    /// overdue. It stays so until a renewal succeeds or the lock is lost. A lock that is lost is no longer at risk: see
    /// [`is_lost`](Self::is_lost).
    ///
    /// Long work asks between two steps, and stops where it can continue later, instead of being dropped at its next
    /// await when the lock is lost. With a ttl of 30 s, about 15 s are left then: see [`remaining`](Self::remaining), and
    /// the guide [`on_loss`](crate::guide::on_loss#stop-at-a-safe-point).
    ///
    /// Always returns false for a lock that no renewal could save: with [`Renew::Never`](crate::Renew::Never), and near
    /// the end of its [`max_hold`](crate::LockRequest::max_hold). A lock that another client has removed is lost
    /// without having been at risk, and so is one whose process stood still.
    ///
    /// ```
    /// # use lock_core::error::BackendErrorKind;
    /// # use lock_core::{LockError, LockManager};
    /// # use lock_testing::{Command, in_memory_with_faults};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), LockError> {
    /// # let (locks, faults) = in_memory_with_faults(LockManager::builder())?;
    /// let import = locks.lock("import").ttl(Duration::from_secs(30)).acquire().await?;
    /// assert!(!import.is_at_risk());
    /// # let outage = || faults.refuse(Command::Renew, BackendErrorKind::Unreachable);
    /// outage();
    /// tokio::time::sleep(Duration::from_secs(16)).await;
    /// assert!(import.is_at_risk() && !import.is_lost());
    /// # faults.accept(Command::Renew);
    /// # assert!(!import.is_at_risk());
    /// # import.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn is_at_risk(&self) -> bool {
        self.held().is_at_risk()
    }

    /// Returns a future that completes when the lock is [at risk](Self::is_at_risk), or lost. It never completes after a
    /// release.
    ///
    /// While the lock is at risk, a new future completes at once. Without such a future, nothing watches the risk, so it
    /// costs nothing.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # async fn next_row() -> Option<u64> { None }
    /// # async fn copy(_: u64) {}
    /// async fn import(locks: &LockManager) -> Result<(), LockError> {
    ///     let guard = locks.lock("import").acquire().await?;
    ///     let mut at_risk = guard.at_risk();
    ///     loop {
    ///         let row = tokio::select! {
    ///             // The last row is copied whole, and the next run continues behind it.
    ///             () = &mut at_risk => break,
    ///             row = next_row() => row,
    ///         };
    ///         let Some(row) = row else { break };
    ///         copy(row).await;
    ///     }
    ///     guard.release().await
    /// }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// # import(&LockManager::in_memory()).await
    /// # }
    /// ```
    ///
    /// # Panics
    /// Polling the future panics outside of a tokio runtime, except for a lock in memory that is held as long as its guard
    /// exists. A tokio timer detects the risk.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on the lock. A later future reports the same risk, if it lasts.
    pub fn at_risk(&self) -> LossSignal {
        LossSignal::of_risk([self])
    }

    /// Returns a handle that shows the state of this lock and cannot release it.
    #[must_use]
    pub fn watch(&self) -> LockWatch {
        LockWatch::of([self])
    }

    /// Renews the lease to the whole ttl now, in addition to the renewals in the background.
    ///
    /// # Errors
    /// - [`LockError::Lost`] when the lock is no longer held.
    /// - [`LockError::Backend`], or [`LockError::NoQuorum`] at a quorum, when the renewal was not confirmed. The
    ///   lock is held until its lease ends.
    /// - [`LockError::NoRuntime`] outside of a tokio runtime.
    /// - [`LockError::Forked`] in a forked child.
    ///
    /// # Cancel safety
    /// A renewal whose future is dropped may or may not extend the lease.
    #[doc(alias = "extend")]
    pub async fn renew(&self) -> Result<(), LockError> {
        self.acquired.inner.renew(self.held()).await
    }

    /// Makes an exclusive lock a read lock, without a moment in which it is free. Readers that wait next in the
    /// queue get the lock too. The returned guard has a new, greater [fencing token](Self::fencing_token).
    ///
    /// There is no way back: two readers that both want to write would wait for each other.
    ///
    /// ```
    /// # use lock_core::{Kind, LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let writer = locks.lock("stock:7").write().acquire().await?;
    /// let reader = writer.downgrade().await?;
    /// assert_eq!(reader.kind(), Kind::Read);
    /// let other = locks.lock("stock:7").read().try_acquire().await?;
    /// assert!(other.is_some());
    /// # reader.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    /// After each error the lock is released, in the background.
    /// - [`LockError::Lost`] when the lock was no longer held.
    /// - [`LockError::ForeignKey`] when another client uses the key `{<name>}:h`, in which the readers are.
    /// - [`LockError::Invalid`] with [`InvalidSetting::Kind`] for a lock that is not exclusive, that has a
    ///   [`min_hold`](crate::LockRequest::min_hold) or a [`once_per`](crate::LockRequest::once_per), or that is in a dialect or at a quorum of servers, where only
    ///   exclusive locks exist.
    /// - [`LockError::Backend`] when the server did not confirm the change.
    /// - [`LockError::ShuttingDown`], [`LockError::NoRuntime`] and [`LockError::Forked`] as for an acquire.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock in the background.
    pub async fn downgrade(self) -> Result<Self, LockError> {
        self.acquired
            .check_downgrade()
            .map_err(|reason| InvalidSetting::Kind {
                kind: self.kind(),
                reason,
            })?;
        waiter::downgrade(self.acquired).await.map(Self::new)
    }

    /// Hands the lock over: makes a ticket of it, which another task or process turns into a guard with
    /// [`LockManager::resume`](crate::LockManager::resume). The lock stays held for `within` from now on, from 100 ms to
    /// 24 h, and nobody renews it. If nobody resumes the ticket by then, the lock is free.
    ///
    /// The lock gets a new owner in the same moment, so what this guard has sent before can't change it: neither a renewal
    /// that is on its way, nor the release of a process that is killed now. The ticket's
    /// [fencing token](LockTicket::fencing_token) is greater than the guard's. A [`max_hold`](crate::LockRequest::max_hold)
    /// ends with the guard; the request that resumes the ticket sets its own.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let order = locks.lock("order:42").acquire().await?;
    /// let ticket = order.into_ticket(Duration::from_secs(60)).await?;
    /// // In another task, or after `to_string` and `parse` in another process:
    /// let order = locks.resume(ticket).await?;
    /// assert_eq!(order.name(), "order:42");
    /// order.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    /// After each error the lock is released, in the background.
    /// - [`LockError::Lost`] when the lock was no longer held.
    /// - [`LockError::Invalid`] with [`InvalidSetting::Ticket`] for a lock that is not exclusive, that has a
    ///   [`min_hold`](crate::LockRequest::min_hold) or a [`once_per`](crate::LockRequest::once_per), that is in another
    ///   dialect than the native one, or at a quorum of servers, and with [`InvalidSetting::Ttl`] when `within` is out of range.
    /// - [`LockError::Backend`] when the server did not confirm the change.
    /// - [`LockError::NoRuntime`] outside of a tokio runtime, and [`LockError::Forked`] in a forked child, where the lock
    ///   is not released because it belongs to the parent.
    ///
    /// A manager that is shutting down still makes tickets, so that a process can hand its locks over before it ends.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock in the background.
    #[doc(alias = "detach")]
    pub async fn into_ticket(self, within: Duration) -> Result<LockTicket, LockError> {
        let ttl = Ttl::new(within).ok_or(InvalidSetting::Ttl {
            ttl: within,
            setting: None,
        })?;
        self.acquired.check_ticket().map_err(InvalidSetting::from)?;
        waiter::into_ticket(self.acquired, ttl).await
    }

    /// Releases the lock and waits for the server's reply, at most for the command timeout.
    ///
    /// # Errors
    /// - [`LockError::Lost`] when the lock was lost before the release.
    /// - [`LockError::Backend`], or [`LockError::NoQuorum`] at a quorum, when the release was not confirmed. It
    ///   continues in the background.
    /// - [`LockError::NoRuntime`] outside of a tokio runtime. The release continues in the
    ///   background.
    /// - [`LockError::Forked`] in a forked child. The lock is not released, because it belongs to
    ///   the parent.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock in the background.
    pub async fn release(mut self) -> Result<(), LockError> {
        let outcome = self.acquired.send_release().await;
        self.finish_release(outcome)
    }

    /// Releases the lock as [`release`](Self::release) does, and says that the work has succeeded: the name stays taken
    /// for the rest of the request's [`once_per`](crate::LockRequest::once_per). Without this call nothing stays taken.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let report = || locks.lock("report").once_per(Duration::from_secs(3600));
    /// // The work fails, so another caller may try at once.
    /// report().acquire().await?.release().await?;
    /// // It succeeds.
    /// report().acquire().await?.complete().await?;
    /// assert!(report().try_acquire().await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`release`](Self::release). After [`LockError::Lost`] the name isn't taken; after another error, the call goes
    /// on in the background, until the lease has ended. [`LockError::Invalid`] with
    /// [`InvalidSetting::OncePer`] when the request has no `once_per`; the lock is released in the background then.
    ///
    /// # Cancel safety
    /// Dropping the future completes in the background.
    pub async fn complete(self) -> Result<(), LockError> {
        self.mark_completed()?;
        self.release().await
    }
}

impl LockGuard {
    /// Records the outcome of the release. What it doesn't confirm is released again by the drop.
    fn finish_release(
        &mut self,
        outcome: Result<ReleaseOutcome, LockError>,
    ) -> Result<(), LockError> {
        let outcome = outcome?;
        self.acquired.finish_release(&outcome);
        // The server may have had the lock for a moment longer than the guard counted on it.
        if outcome.was_owner && self.held().loss_reason().is_none() {
            Ok(())
        } else {
            Err(self.held().lost_error())
        }
    }

    pub(crate) fn held(&self) -> &Arc<HeldLock> {
        &self.acquired.held
    }

    /// Lets each release from now on say that the work has succeeded.
    fn mark_completed(&self) -> Result<(), LockError> {
        if self.acquired.complete() {
            Ok(())
        } else {
            Err(InvalidOncePerReason::Missing.into())
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("key", &self.key())
            .field("fencing_token", &self.held().token)
            .field("is_lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}

/// Something for one lock, without an allocation, or for each lock of a set.
#[derive(Clone, Debug)]
pub(crate) enum PerLock<T> {
    One(T),
    Set(Vec<T>),
}

impl<T> PerLock<T> {
    fn as_slice(&self) -> &[T] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Set(all) => all,
        }
    }

    fn as_mut_slice(&mut self) -> &mut [T] {
        match self {
            Self::One(one) => std::slice::from_mut(one),
            Self::Set(all) => all,
        }
    }
}

impl<T> FromIterator<T> for PerLock<T> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut items = items.into_iter();
        match (items.next(), items.next()) {
            (Some(one), None) => Self::One(one),
            (first, second) => Self::Set(first.into_iter().chain(second).chain(items).collect()),
        }
    }
}

/// What a caller holds while its body runs. Each kind of guard is one lock, or the locks of a set.
pub(crate) trait Holding {
    fn guards(&self) -> &[LockGuard];

    fn guards_mut(&mut self) -> &mut [LockGuard];

    /// Returns a future that completes at the loss of the first lock.
    fn loss(&self) -> LossSignal {
        LossSignal::of(self.guards())
    }

    /// Returns whether a lock is lost.
    fn is_any_lost(&self) -> bool {
        self.guards().iter().any(LockGuard::is_lost)
    }

    /// Returns the error of the first lock that is lost.
    fn loss_error(&self) -> LockError {
        let guards = self.guards();
        let lost = guards.iter().find(|guard| guard.is_lost());
        let lost = lost.or(guards.first());
        lost.map_or(LockError::ShuttingDown, |guard| guard.held().lost_error())
    }

    /// Enters the scope of the body for one poll. While the scopes live, an acquire of one of the locks on this task fails
    /// at once.
    fn enter_body(&self) -> PerLock<BodyScope> {
        let mut scopes: PerLock<_> = self
            .guards()
            .iter()
            .map(|guard| guard.acquired.enter())
            .collect();
        // The innermost scope is dropped first.
        scopes.as_mut_slice().reverse();
        scopes
    }

    /// Keeps the keys locked for at least this long from now on, even if the release comes earlier.
    fn set_min_hold(&mut self, min_hold: Duration) {
        for guard in self.guards_mut() {
            guard.acquired.set_min_hold(min_hold);
        }
    }

    /// Lets the names stay taken for this period since the grant, once [`complete`](Self::complete) was called.
    fn set_once_per(&mut self, period: Duration) {
        for guard in self.guards_mut() {
            guard.acquired.set_once_per(period);
        }
    }

    /// Lets each release from now on say that the work has succeeded. Without a period, does nothing.
    fn complete(&self) {
        for guard in self.guards() {
            guard.acquired.complete();
        }
    }

    /// Records the outcomes of a release. What they don't confirm is released again by the drop.
    fn finish_body(&mut self, released: &Released) {
        let outcomes = released.0.as_slice();
        for (guard, outcome) in self.guards_mut().iter_mut().zip(outcomes) {
            if let Some(outcome) = outcome {
                guard.acquired.finish_release(outcome);
            }
        }
    }
}

/// The outcomes of the release after a body, in the order of the guards; `None` without a reply.
#[derive(Debug)]
pub(crate) struct Released(PerLock<Option<ReleaseOutcome>>);

/// Releases after the body has completed. Never fails, because the caller gets the body's result whatever becomes of the
/// release. Reports a release that failed. The caller passes the outcomes to [`Holding::finish_body`].
///
/// # Cancel safety
/// Dropping the future loses nothing: the drops of the guards release in the background.
pub(crate) async fn release_after_body(guards: &[LockGuard]) -> Released {
    let outcomes = match guards {
        [guard] => PerLock::One(guard.acquired.send_release().await),
        // In a box, so that the future of a body stays small.
        guards => PerLock::Set(Box::pin(send_releases(guards)).await),
    };
    let outcome = |(guard, outcome): (&LockGuard, &Result<ReleaseOutcome, LockError>)| {
        let outcome = outcome.as_ref().ok();
        if !outcome.is_some_and(|outcome| outcome.was_owner) {
            guard.acquired.inner.reporter.release_failed();
        }
        outcome.copied()
    };
    Released(
        guards
            .iter()
            .zip(outcomes.as_slice())
            .map(outcome)
            .collect(),
    )
}

/// Sends the releases of a set. Returns their outcomes, in order.
fn send_releases(
    guards: &[LockGuard],
) -> impl Future<Output = Vec<Result<ReleaseOutcome, LockError>>> + Send + use<> {
    let acquired: Vec<_> = guards.iter().map(|guard| &guard.acquired).collect();
    set::send_release(&acquired)
}

impl Holding for LockGuard {
    fn guards(&self) -> &[LockGuard] {
        std::slice::from_ref(self)
    }

    fn guards_mut(&mut self) -> &mut [LockGuard] {
        std::slice::from_mut(self)
    }
}

impl<H: Holding> Holding for Box<H> {
    fn guards(&self) -> &[LockGuard] {
        H::guards(self)
    }

    fn guards_mut(&mut self) -> &mut [LockGuard] {
        H::guards_mut(self)
    }
}
