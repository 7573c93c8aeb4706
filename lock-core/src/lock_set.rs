//! Several locks that one caller holds together.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::error::LockError;
use crate::guard::{Holding, LockGuard};
use crate::runtime::reentrancy::BodyScope;
use crate::runtime::set;
use lock_protocol::cleanup::ReleaseOutcome;
use lock_protocol::fencing_token::FencingToken;
use lock_protocol::key::LockName;
use lock_protocol::loss::LossReason;

mod acquire;
mod request;
mod watch;

pub use self::request::LockSetRequest;
pub use self::watch::{LockSetLost, LockSetWatch};

/// Several held locks, all of which were acquired. Made by [`LockSetRequest::acquire`].
///
/// Each lock has its own lease, its own renewals and its own fencing token. The set is lost as soon as one
/// of its locks is lost: [`lost`](Self::lost) completes, and the others stay held until the set is released or
/// dropped. Dropping the set releases all of them.
///
/// The library acquires the locks of a set in the order of their keys. So sets never wait for each other in a
/// cycle, in whatever order their names are written.
///
/// ```
/// # use lock_core::{LockError, LockManager};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let locks = LockManager::in_memory();
/// let both = locks.lock_all(["account:7", "account:3"]).acquire().await?;
/// assert!(locks.lock("account:3").try_acquire().await?.is_none());
/// drop(both);
/// assert!(locks.lock("account:3").acquire().await.is_ok());
/// # Ok(())
/// # }
/// ```
#[must_use = "the locks are released as soon as the set is dropped"]
pub struct LockSet {
    /// In the order of their keys.
    guards: Vec<LockGuard>,
    /// The names of the guards, in the same order.
    names: Vec<LockName>,
}

impl LockSet {
    /// Returns the guards of the locks, in the order of their keys.
    ///
    /// ```
    /// # use lock_core::{LockError, LockGuard, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let both = locks.lock_all(["account:7", "account:3"]).acquire().await?;
    /// let keys: Vec<_> = both.guards().iter().map(LockGuard::key).collect();
    /// assert_eq!(keys, ["lock:account:3", "lock:account:7"]);
    /// both.release().await
    /// # }
    /// ```
    pub fn guards(&self) -> &[LockGuard] {
        &self.guards
    }

    /// Returns the fencing token of the lock with this name. Returns `None` when the set has no such lock,
    /// and in [dialects](crate::Dialect) without fencing tokens.
    ///
    /// The attribute encodes the values in a name. Where a value may hold such characters as `:`, write the name
    /// with [`lock_name!`](crate::lock_name).
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let both = locks.lock_all(["account:7", "account:3"]).acquire().await?;
    /// assert!(both.fencing_token("account:7").is_some());
    /// assert_eq!(both.fencing_token("account:8"), None);
    /// both.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn fencing_token(&self, name: impl Into<LockName>) -> Option<FencingToken> {
        let name = name.into();
        let at = self.names.iter().position(|known| *known == name)?;
        self.guards.get(at).and_then(LockGuard::fencing_token)
    }

    /// Returns whether at least one of the locks is no longer certainly held.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager, Renew};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let request = locks.lock_all(["account:7", "account:3"]).renew(Renew::Never);
    /// let both = request.ttl(Duration::from_millis(100)).acquire().await?;
    /// tokio::time::sleep(Duration::from_millis(150)).await;
    /// assert!(both.is_lost());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.guards.iter().any(LockGuard::is_lost)
    }

    /// Returns why the set was lost: the reason of the lost lock whose key comes first. Returns `None` while all are
    /// held.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager, LossReason, Renew};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let request = locks.lock_all(["account:7", "account:3"]).renew(Renew::Never);
    /// let both = request.ttl(Duration::from_millis(100)).acquire().await?;
    /// both.lost().await;
    /// assert_eq!(both.loss_reason(), Some(LossReason::Expired));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn loss_reason(&self) -> Option<LossReason> {
        self.guards.iter().find_map(LockGuard::loss_reason)
    }

    /// Returns a future that completes when one of the locks is lost. It never completes after a release.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager, Renew};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let request = locks.lock_all(["account:7", "account:3"]).renew(Renew::Never);
    /// let both = request.ttl(Duration::from_millis(100)).acquire().await?;
    /// both.lost().await;
    /// assert!(both.is_lost());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// As [`LockGuard::lost`].
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on the locks. A later future reports the same loss.
    pub fn lost(&self) -> LockSetLost {
        LockSetLost::new(self.guards.iter().map(LockGuard::lost).collect())
    }

    /// Returns how long all locks are certainly held from now on, without a further renewal: the shortest
    /// of their times. Returns zero when one of them is lost.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let ttl = Duration::from_secs(10);
    /// let both = locks.lock_all(["account:7", "account:3"]).ttl(ttl).acquire().await?;
    /// assert_eq!(both.remaining(), ttl);
    /// both.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let remaining = self.guards.iter().map(LockGuard::remaining);
        remaining.min().unwrap_or_default()
    }

    /// Returns a handle that shows the state of the set and cannot release it.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let both = locks.lock_all(["account:7", "account:3"]).acquire().await?;
    /// let watch = both.watch();
    /// assert!(watch.is_held());
    /// both.release().await?;
    /// assert!(!watch.is_held());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn watch(&self) -> LockSetWatch {
        let watches = self.guards.iter().map(LockGuard::watch).collect();
        LockSetWatch::new(watches, self.names.clone())
    }

    /// Renews the leases of all locks now, in addition to the renewals in the background.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager, Renew};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let request = locks.lock_all(["account:7", "account:3"]).renew(Renew::Never);
    /// let both = request.acquire().await?;
    /// tokio::time::sleep(Duration::from_millis(100)).await;
    /// let before = both.remaining();
    /// both.renew().await?;
    /// assert!(both.remaining() > before);
    /// both.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`LockGuard::renew`]: the error of the first lock that was not renewed. The method tries to renew
    /// the others all the same.
    ///
    /// # Cancel safety
    /// A renewal whose future is dropped may or may not extend the leases.
    #[doc(alias = "extend")]
    pub async fn renew(&self) -> Result<(), LockError> {
        let acquired: Vec<_> = self.guards.iter().map(LockGuard::acquired).collect();
        set::renew(&acquired).await
    }

    /// Releases all locks and waits for the server's replies, at most for the command timeout.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let both = locks.lock_all(["account:7", "account:3"]).acquire().await?;
    /// both.release().await?;
    /// assert!(locks.lock("account:3").try_acquire().await?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`LockGuard::release`]: the error of the first lock whose release was not confirmed, or that was
    /// lost before. The others are released all the same.
    ///
    /// # Cancel safety
    /// Dropping the future releases the locks in the background.
    pub async fn release(mut self) -> Result<(), LockError> {
        let releases = self.send_release().await;
        self.finish_release(&releases)
    }
}

impl LockSet {
    fn new(guards: Vec<LockGuard>, names: Vec<LockName>) -> Self {
        Self { guards, names }
    }

    /// Enters the scope of the body. While the returned scopes live, an acquire of one of the locks on this
    /// task fails at once.
    pub(crate) fn enter(&self) -> SetScope {
        SetScope(self.guards.iter().map(LockGuard::enter).collect())
    }

    /// Returns the error of the first lock that is lost.
    pub(crate) fn lost_error(&self) -> LockError {
        let lost = self.guards.iter().find(|guard| guard.is_lost());
        let lost = lost.or(self.guards.first());
        lost.map_or(LockError::ShuttingDown, LockGuard::lost_error)
    }

    /// Sends the releases. The caller passes the outcomes to [`finish_release`](Self::finish_release).
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: the drop of `self` releases in the background.
    pub(crate) fn send_release(&self) -> impl Future<Output = SetReleases> + Send + use<> {
        let acquired: Vec<_> = self.guards.iter().map(LockGuard::acquired).collect();
        // In a box, so that the future of a body stays small.
        let releasing = Box::pin(set::send_release(&acquired));
        async move { SetReleases(releasing.await) }
    }

    /// Records the outcomes of the releases, and returns the first error.
    pub(crate) fn finish_release(&mut self, releases: &SetReleases) -> Result<(), LockError> {
        let mut result = Ok(());
        for (guard, outcome) in self.guards.iter_mut().zip(&releases.0) {
            let confirmed = match outcome {
                Ok(outcome) => {
                    guard.finish_release(outcome);
                    if outcome.was_owner {
                        Ok(())
                    } else {
                        Err(guard.lost_error())
                    }
                }
                Err(error) => Err(error.clone()),
            };
            result = result.and(confirmed);
        }
        result
    }
}

/// The outcomes of the releases of a set, in the order of its guards.
pub(crate) struct SetReleases(Vec<Result<ReleaseOutcome, LockError>>);

/// The scope of one poll of a body that runs under a set.
pub(crate) struct SetScope(Vec<BodyScope>);

impl Drop for SetScope {
    fn drop(&mut self) {
        // The innermost scope first.
        while let Some(scope) = self.0.pop() {
            drop(scope);
        }
    }
}

impl Holding for LockSet {
    type Loss = LockSetLost;
    type Scope = SetScope;
    type Outcome = SetReleases;

    fn loss(&self) -> LockSetLost {
        self.lost()
    }

    fn loss_error(&self) -> LockError {
        self.lost_error()
    }

    fn enter_body(&self) -> SetScope {
        self.enter()
    }

    fn release_after_body(&self) -> impl Future<Output = SetReleases> + Send {
        let release = self.send_release();
        let reporter = self.guards.first().map(|guard| {
            let inner = &guard.acquired().inner;
            Arc::clone(&inner.reporter)
        });
        async move {
            let releases = release.await;
            for outcome in &releases.0 {
                let was_released = outcome.as_ref().is_ok_and(|outcome| outcome.was_owner);
                if let Some(reporter) = reporter.as_ref().filter(|_| !was_released) {
                    reporter.release_failed();
                }
            }
            releases
        }
    }

    fn finish_body(&mut self, releases: &SetReleases) {
        // The caller gets the body's result, whatever the outcome of the releases is.
        let _reported = self.finish_release(releases);
    }
}

impl fmt::Debug for LockSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.guards).finish()
    }
}

#[cfg(test)]
mod tests;
