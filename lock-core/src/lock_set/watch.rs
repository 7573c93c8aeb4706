//! The state of a set of locks, for tasks that work under it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::guard::{LockWatch, Lost};
use lock_protocol::fencing_token::FencingToken;
use lock_protocol::key::LockName;
use lock_protocol::loss::LossReason;

/// Shows the state of a set of locks, for tasks that work under it and must not release it. Made by
/// [`LockSet::watch`](crate::LockSet::watch).
///
/// ```
/// # use lock_core::{LockError, LockManager};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let locks = LockManager::in_memory();
/// let both = locks.lock_all(["account:7", "account:3"]).acquire().await?;
/// let watch = both.watch();
/// assert!(watch.is_held() && !watch.remaining().is_zero());
/// assert_eq!(watch.fencing_token("account:7"), both.fencing_token("account:7"));
/// both.release().await?;
/// assert!(!watch.is_held() && !watch.is_lost());
/// assert_eq!(watch.loss_reason(), None);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct LockSetWatch {
    watches: Vec<LockWatch>,
    names: Vec<LockName>,
}

impl LockSetWatch {
    pub(super) fn new(watches: Vec<LockWatch>, names: Vec<LockName>) -> Self {
        Self { watches, names }
    }

    /// Returns whether at least one of the locks is lost. A released set is not lost: see
    /// [`is_held`](Self::is_held).
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.watches.iter().any(LockWatch::is_lost)
    }

    /// Returns whether all locks are certainly held now: neither lost nor released.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.watches.iter().all(LockWatch::is_held)
    }

    /// Returns why the set was lost, as [`LockSet::loss_reason`](crate::LockSet::loss_reason) does.
    #[must_use]
    pub fn loss_reason(&self) -> Option<LossReason> {
        self.watches.iter().find_map(LockWatch::loss_reason)
    }

    /// Returns a future that completes when one of the locks is lost.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager, LossReason, Renew};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let request = locks.lock_all(["account:7", "account:3"]).renew(Renew::Never);
    /// let both = request.ttl(Duration::from_millis(100)).acquire().await?;
    /// let watch = both.watch();
    /// let reporting = tokio::spawn(async move {
    ///     watch.lost().await;
    ///     watch.loss_reason()
    /// });
    /// assert_eq!(reporting.await.expect("no panic"), Some(LossReason::Expired));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// As [`LockGuard::lost`](crate::LockGuard::lost).
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on the locks. A later future reports the same loss.
    pub fn lost(&self) -> LockSetLost {
        LockSetLost::new(self.watches.iter().map(LockWatch::lost).collect())
    }

    /// Returns how long all locks are certainly held. Returns zero after the release too.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let remaining = self.watches.iter().map(LockWatch::remaining);
        remaining.min().unwrap_or_default()
    }

    /// Returns the token of the lock with this name, as
    /// [`LockSet::fencing_token`](crate::LockSet::fencing_token) does.
    #[must_use]
    pub fn fencing_token(&self, name: impl Into<LockName>) -> Option<FencingToken> {
        let name = name.into();
        let at = self.names.iter().position(|known| *known == name)?;
        self.watches.get(at).and_then(LockWatch::fencing_token)
    }
}

impl fmt::Debug for LockSetWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.watches).finish()
    }
}

/// Completes when one lock of a set is lost. Made by [`LockSet::lost`](crate::LockSet::lost) and
/// [`LockSetWatch::lost`].
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
pub struct LockSetLost {
    losses: Vec<Lost>,
}

impl LockSetLost {
    pub(super) fn new(losses: Vec<Lost>) -> Self {
        Self { losses }
    }
}

impl Future for LockSetLost {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        for lost in &mut self.losses {
            if Pin::new(lost).poll(cx).is_ready() {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }
}

impl fmt::Debug for LockSetLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.losses).finish()
    }
}
