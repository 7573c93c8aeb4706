//! The kind of the lock that a request is for.

use std::time::Duration;

use super::LockRequest;
use crate::error::LockError;
use crate::runtime::inner::ManagerInner;
use lock_protocol::dialect::Dialect;
use lock_protocol::kind::{InvalidKindReason, Kind};

impl LockRequest {
    /// Sets the kind of the lock. The last call of this method, [`read`](Self::read),
    /// [`write`](Self::write) or [`permits`](Self::permits) counts. Defaults to [`Kind::Exclusive`].
    ///
    /// Kinds other than the exclusive one need the native dialect, and do not exist at a quorum of servers.
    ///
    /// ```
    /// # use lock_core::{Kind, LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let kind = Kind::Permits { of: 8, weight: 2 };
    /// let held = locks.lock("mailer").kind(kind).acquire().await?;
    /// assert_eq!(held.kind(), kind);
    /// held.release().await
    /// # }
    /// ```
    pub fn kind(mut self, kind: Kind) -> Self {
        self.kind = RequestedKind { kind, reason: None };
        self
    }

    /// Requests the lock for reading: any number of readers hold it together, and no writer does.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let one = locks.lock("stock:7").read().acquire().await?;
    /// let other = locks.lock("stock:7").read().try_acquire().await?;
    /// assert!(other.is_some());
    /// assert!(locks.lock("stock:7").write().try_acquire().await?.is_none());
    /// # one.release().await
    /// # }
    /// ```
    pub fn read(self) -> Self {
        self.kind(Kind::Read)
    }

    /// Requests the lock for writing. That is the same as an exclusive lock, and says what is meant.
    ///
    /// ```
    /// # use lock_core::{Kind, LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let writer = locks.lock("stock:7").write().acquire().await?;
    /// assert_eq!(writer.kind(), Kind::Exclusive);
    /// assert!(locks.lock("stock:7").read().try_acquire().await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn write(self) -> Self {
        self.kind(Kind::Exclusive)
    }

    /// Requests one of `permits` permits: as many holders have the lock together. From 1 to 10,000.
    ///
    /// All callers of a name should give the same number. Those with another number wait until the holders
    /// with the first one are gone.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let one = locks.lock("mailer").permits(2).acquire().await?;
    /// let two = locks.lock("mailer").permits(2).acquire().await?;
    /// assert!(locks.lock("mailer").permits(2).try_acquire().await?.is_none());
    /// # drop((one, two));
    /// # Ok(())
    /// # }
    /// ```
    pub fn permits(mut self, permits: u32) -> Self {
        // A weight that was set before stays an error: the holder would take fewer permits than it needs.
        let reason = self.kind.reason;
        self = self.kind(Kind::Permits {
            of: permits,
            weight: 1,
        });
        self.kind.reason = reason;
        self
    }

    /// Sets how many of the [`permits`](Self::permits) the holder takes: from 1 to 256, and at most all of
    /// them. Call it after `permits`. Defaults to 1.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let large = locks.lock("mailer").permits(4).weight(3).acquire().await?;
    /// let small = locks.lock("mailer").permits(4).acquire().await?;
    /// assert!(locks.lock("mailer").permits(4).try_acquire().await?.is_none());
    /// # drop((large, small));
    /// # Ok(())
    /// # }
    /// ```
    pub fn weight(mut self, weight: u32) -> Self {
        self.kind.set_weight(weight);
        self
    }
}

/// The kind that a request asks for, and what is known to be wrong with it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestedKind {
    pub(crate) kind: Kind,
    reason: Option<InvalidKindReason>,
}

impl RequestedKind {
    fn set_weight(&mut self, new: u32) {
        if let Kind::Permits { weight, .. } = &mut self.kind {
            *weight = new;
        } else {
            self.reason = Some(InvalidKindReason::WeightWithoutPermits);
        }
    }

    pub(super) fn check(
        self,
        inner: &ManagerInner,
        dialect: Dialect,
        min_hold: Option<Duration>,
    ) -> Result<(), LockError> {
        let kind = self.kind;
        let supports = dialect.capabilities().shared_kinds && inner.store.traits().shared_kinds;
        let reason = match self.reason {
            Some(reason) => Some(reason),
            None if kind.is_shared() && !supports => Some(InvalidKindReason::Dialect),
            None if kind == Kind::Read && min_hold.is_some() => Some(InvalidKindReason::MinHold),
            None => kind.check().err(),
        };
        reason.map_or(Ok(()), |reason| {
            Err(LockError::InvalidKind { kind, reason })
        })
    }
}
