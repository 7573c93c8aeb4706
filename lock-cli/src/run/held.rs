//! The locks that are held while the command runs: one, or a set.

use std::pin::Pin;

use lock_core::{LockError, LockGuard, LockSet, LossReason};

/// A held lock, or all locks of a set.
pub(super) enum Held {
    One(LockGuard),
    Set(LockSet),
}

impl Held {
    /// Returns the guard of each lock, in the order of the keys.
    pub(super) fn guards(&self) -> &[LockGuard] {
        match self {
            Self::One(guard) => std::slice::from_ref(guard),
            Self::Set(set) => set.guards(),
        }
    }

    pub(super) async fn renew(&self) -> Result<(), LockError> {
        match self {
            Self::One(guard) => guard.renew().await,
            Self::Set(set) => set.renew().await,
        }
    }

    pub(super) async fn release(self) -> Result<(), LockError> {
        match self {
            Self::One(guard) => guard.release().await,
            Self::Set(set) => set.release().await,
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        match self {
            Self::One(guard) => guard.is_lost(),
            Self::Set(set) => set.is_lost(),
        }
    }

    pub(super) fn loss_reason(&self) -> Option<LossReason> {
        match self {
            Self::One(guard) => guard.loss_reason(),
            Self::Set(set) => set.loss_reason(),
        }
    }

    /// Returns a future that completes when one of the locks is lost.
    pub(super) fn lost(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        match self {
            Self::One(guard) => Box::pin(guard.lost()),
            Self::Set(set) => Box::pin(set.lost()),
        }
    }
}
