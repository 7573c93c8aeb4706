//! The guard of a held lock, which releases the lock when it is dropped.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::LockError;
use crate::runtime::acquired::Acquired;
use crate::runtime::held_lock::HeldLock;
use crate::runtime::reentrancy;
use crate::runtime::waiter;
use lock_protocol::cleanup::ReleaseOutcome;
use lock_protocol::fencing_token::FencingToken;
use lock_protocol::kind::Kind;
use lock_protocol::loss::LossReason;

mod holding;
mod lost;

pub(crate) use self::holding::{Holding, run, run_until};
pub use self::lost::Lost;

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

    /// Returns the token of this grant. Holders of one group, which are readers or holders of permits that have
    /// the lock together, share one token. An exclusive holder has its own. The token is greater than that of
    /// every earlier group and of every earlier exclusive holder of this key, as long as the
    /// [conditions](crate::guide::guarantees#fencing-tokens-grow) hold.
    ///
    /// Returns `None` in [dialects](crate::Dialect) without fencing tokens. Two have them:
    /// [`Native`](crate::Dialect::Native), and [`Redisson`](crate::Dialect::Redisson) with
    /// [`RedissonLock::Fenced`](crate::RedissonLock::Fenced), whose tokens begin at 1 again when the server loses
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
    /// A server reports the reason in its reply to a renewal, so by default the holder knows it at most a third
    /// of the ttl after the loss, and with [`Renew::Every`](crate::Renew::Every) at most half. A lease that ended
    /// before that is
    /// [`Expired`](LossReason::Expired).
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
    pub fn lost(&self) -> Lost {
        Lost::new(
            Arc::clone(self.held()),
            self.acquired.inner.needs_expiry_timer(),
        )
    }

    /// Returns a handle that shows the state of this lock and cannot release it.
    #[must_use]
    pub fn watch(&self) -> LockWatch {
        LockWatch {
            held: Arc::clone(self.held()),
            needs_expiry_timer: self.acquired.inner.needs_expiry_timer(),
        }
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
    /// - [`LockError::InvalidKind`] for a lock that is not exclusive, that has a
    ///   [`min_hold`](crate::LockRequest::min_hold), or that is in a dialect or at a quorum of servers, where only
    ///   exclusive locks exist.
    /// - [`LockError::Backend`] when the server did not confirm the change.
    /// - [`LockError::ShuttingDown`], [`LockError::NoRuntime`] and [`LockError::Forked`] as for an acquire.
    ///
    /// # Cancel safety
    /// Dropping the future releases the lock in the background.
    pub async fn downgrade(self) -> Result<Self, LockError> {
        self.acquired
            .check_downgrade()
            .map_err(|reason| LockError::InvalidKind {
                kind: self.kind(),
                reason,
            })?;
        waiter::downgrade(self.acquired).await.map(Self::new)
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
        let outcome = self.acquired.send_release().await?;
        self.finish_release(&outcome);
        if outcome.was_owner {
            Ok(())
        } else {
            Err(self.lost_error())
        }
    }
}

impl LockGuard {
    /// Keeps the key locked for at least this long from now on, also after an earlier release.
    pub(crate) fn set_min_hold(&mut self, min_hold: Duration) {
        self.acquired.set_min_hold(min_hold);
    }

    /// Enters the scope of the body. While the returned scope lives, an acquire of this lock on this
    /// task fails at once.
    pub(crate) fn enter(&self) -> reentrancy::BodyScope {
        self.acquired.enter()
    }

    /// Records the outcome of the release.
    pub(crate) fn finish_release(&mut self, outcome: &ReleaseOutcome) {
        self.acquired.finish_release(outcome);
    }

    pub(crate) fn lost_error(&self) -> LockError {
        self.held().lost_error()
    }

    pub(crate) fn acquired(&self) -> &Acquired {
        &self.acquired
    }

    fn held(&self) -> &Arc<HeldLock> {
        &self.acquired.held
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

/// Shows the state of a held lock, for tasks that work under the lock and must not release it. Made
/// by [`LockGuard::watch`].
#[derive(Clone)]
pub struct LockWatch {
    held: Arc<HeldLock>,
    needs_expiry_timer: bool,
}

impl LockWatch {
    /// Returns the key that is locked, as [`LockGuard::key`] does.
    #[must_use]
    pub fn key(&self) -> &str {
        self.held.key.as_str()
    }

    /// Returns the kind of the lock, as [`LockGuard::kind`] does.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.held.kind()
    }

    /// Returns whether the lock is lost, as [`LockGuard::is_lost`] does. A released lock is not lost: see
    /// [`is_held`](Self::is_held).
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.held.is_lost()
    }

    /// Returns why the lock was lost, as [`LockGuard::loss_reason`] does. Also returns the reason after
    /// the guard of a lost lock was dropped.
    #[must_use]
    pub fn loss_reason(&self) -> Option<LossReason> {
        self.held.loss_reason()
    }

    /// Returns whether the lock is certainly held now: neither lost nor released.
    #[must_use]
    pub fn is_held(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Returns a future that completes when the lock is lost, as [`LockGuard::lost`] does.
    ///
    /// # Panics
    /// As for [`LockGuard::lost`].
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on the lock. A later future reports the same loss.
    pub fn lost(&self) -> Lost {
        Lost::new(Arc::clone(&self.held), self.needs_expiry_timer)
    }

    /// Returns how long the lock is certainly held, as [`LockGuard::remaining`] does. Returns zero after
    /// the release too.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.held.remaining()
    }

    /// Returns the token of this grant, as [`LockGuard::fencing_token`] does.
    #[must_use]
    pub fn fencing_token(&self) -> Option<FencingToken> {
        self.held.token
    }
}

impl fmt::Debug for LockWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockWatch")
            .field("key", &self.key())
            .field("is_lost", &self.is_lost())
            .finish_non_exhaustive()
    }
}

impl LockWatch {
    pub(crate) fn held(&self) -> &Arc<HeldLock> {
        &self.held
    }
}
