//! Several locks that one caller holds together.

use std::fmt;
use std::time::Duration;

use super::{Holding, LockGuard, LockWatch, LossSignal, send_releases};
use crate::error::LockError;
use crate::runtime::set;
use lock_protocol::fencing_token::FencingToken;
use lock_protocol::loss::LossReason;

/// Several held locks, all of which were acquired. Made by a request of
/// [`LockManager::lock_all`](crate::LockManager::lock_all).
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
}

/// Makes a set of one lock, for code that works with sets.
///
/// ```
/// # use lock_core::{LockError, LockManager, LockSet};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let locks = LockManager::in_memory();
/// let set = LockSet::from(locks.lock("order:42").acquire().await?);
/// assert_eq!(set.guards().len(), 1);
/// set.release().await
/// # }
/// ```
impl From<LockGuard> for LockSet {
    fn from(guard: LockGuard) -> Self {
        Self {
            guards: vec![guard],
        }
    }
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

    /// Splits the set into the guards of its locks, in the order of their keys. From then on each guard is released, and
    /// lost, by itself. A watch that was made before still shows all of them together.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let both = locks.lock_all(["account:7", "account:3"]).acquire().await?;
    /// let mut accounts = both.into_guards();
    /// let last = accounts.pop().expect("the set has two locks");
    /// assert_eq!(last.name(), "account:7");
    /// last.release().await?;
    /// assert!(!accounts[0].is_lost());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "the locks are released as soon as the guards are dropped"]
    pub fn into_guards(self) -> Vec<LockGuard> {
        self.guards
    }

    /// Returns the fencing token of the lock with this name. Returns `None` when the set has no such lock,
    /// and in [dialects](crate::dialect::Dialect) without fencing tokens.
    ///
    /// A misspelt name also gives `None`, which looks like a dialect without tokens, so build each name only once:
    /// `let from = lock_name!("account:{from}");`. In a function with the attribute, use
    /// [`lock_name!`](crate::lock_name) too, because the attribute encodes such characters as `:` in the values of a name.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let both = locks.lock_all(["account:7", "account:3"]).acquire().await?;
    /// assert!(both.fencing_token_of("account:7").is_some());
    /// assert_eq!(both.fencing_token_of("account:8"), None);
    /// both.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn fencing_token_of(&self, name: impl AsRef<str>) -> Option<FencingToken> {
        let name = name.as_ref();
        let guard = self.guards.iter().find(|guard| guard.name() == name)?;
        guard.fencing_token()
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
    pub fn lost(&self) -> LossSignal {
        LossSignal::of(&self.guards)
    }

    /// Returns whether one of the locks is about to be lost, as [`LockGuard::is_at_risk`] does.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let both = locks.lock_all(["account:7", "account:3"]).acquire().await?;
    /// assert!(!both.is_at_risk());
    /// both.release().await
    /// # }
    /// ```
    #[must_use]
    pub fn is_at_risk(&self) -> bool {
        self.guards.iter().any(LockGuard::is_at_risk)
    }

    /// Returns a future that completes when one of the locks is at risk or lost, as [`LockGuard::at_risk`] does.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), LockError> {
    /// # let (locks, faults) = lock_testing::in_memory_with_faults(LockManager::builder())?;
    /// let both = locks.lock_all(["account:7", "account:3"]).acquire().await?;
    /// # let outage = || faults.down();
    /// outage();
    /// both.at_risk().await;
    /// assert!(both.is_at_risk() && both.remaining() > Duration::from_secs(14));
    /// # faults.up();
    /// both.release().await
    /// # }
    /// ```
    ///
    /// # Panics
    /// As [`LockGuard::at_risk`].
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on the locks. A later future reports the same risk, if it lasts.
    pub fn at_risk(&self) -> LossSignal {
        LossSignal::of_risk(&self.guards)
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
    pub fn watch(&self) -> LockWatch {
        LockWatch::of(&self.guards)
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
        let acquired: Vec<_> = self.guards.iter().map(|guard| &guard.acquired).collect();
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
        // In a box, so that the caller's future stays small.
        let outcomes = Box::pin(send_releases(&self.guards)).await;
        let mut result = Ok(());
        for (guard, outcome) in self.guards.iter_mut().zip(outcomes) {
            result = result.and(guard.finish_release(outcome));
        }
        result
    }

    /// Releases all locks, and says that the work has succeeded: all names stay taken for the rest of the request's
    /// [`once_per`](crate::LockRequest::once_per).
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let both = locks.lock_all(["import:a", "import:b"]).once_per(Duration::from_secs(3600));
    /// both.acquire().await?.complete().await?;
    /// assert!(locks.lock("import:b").try_acquire().await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`LockGuard::complete`]: the error of the first lock. The others are released all the same.
    ///
    /// # Cancel safety
    /// As [`LockGuard::complete`].
    pub async fn complete(self) -> Result<(), LockError> {
        self.guards.iter().try_for_each(LockGuard::mark_completed)?;
        self.release().await
    }
}

impl LockSet {
    pub(crate) fn new(guards: Vec<LockGuard>) -> Self {
        Self { guards }
    }
}

/// Iterates over the guards, in the order of their keys.
#[expect(
    clippy::into_iter_without_iter,
    reason = "`guards` returns a slice, which has it"
)]
impl<'a> IntoIterator for &'a LockSet {
    type Item = &'a LockGuard;
    type IntoIter = std::slice::Iter<'a, LockGuard>;

    fn into_iter(self) -> Self::IntoIter {
        self.guards.iter()
    }
}

impl Holding for LockSet {
    fn guards(&self) -> &[LockGuard] {
        &self.guards
    }

    fn guards_mut(&mut self) -> &mut [LockGuard] {
        &mut self.guards
    }
}

impl fmt::Debug for LockSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.guards).finish()
    }
}
