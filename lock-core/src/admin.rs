//! What operators see of locks.

use crate::error::LockError;
use crate::info::{HolderInfo, LockInfo};
use crate::manager::LockManager;
use crate::protocol::key::{LockKey, LockName};
use crate::runtime::inner::ManagerInner;

impl LockManager {
    /// Reads a lock: its holder, and its waiters in the order in which they get the lock.
    ///
    /// This is one read-only command. The lock may have changed when the reply arrives, so use it for
    /// people and for monitoring. To act on the result, compare the
    /// [token](crate::ForceRelease::expect_token). The name is read in the manager's
    /// [`dialect`](crate::LockManagerBuilder::dialect); locks of the other dialects that write an
    /// owner are found too.
    ///
    /// # Errors
    /// - [`LockError::InvalidName`] when the name is invalid.
    /// - [`LockError::Backend`] when the server does not reply within the command timeout, or when the
    ///   user may not read the lock.
    /// - [`LockError::ForeignKey`] when the queue of the lock has another type.
    /// - [`LockError::NoRuntime`] outside of a tokio runtime.
    /// - [`LockError::Forked`] in a forked child.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on any lock.
    pub async fn inspect(&self, name: impl Into<LockName>) -> Result<LockInfo, LockError> {
        let inner = self.inner();
        let name = name.into();
        let key = inner.admin_key(&name)?;
        let limit = inner.config.command_timeout;
        let reply = inner.backend.admin().inspect(&key, limit).await?;
        Ok(LockInfo::new(&key, name, &reply, &|owner_id| {
            inner.is_own(owner_id)
        }))
    }

    /// Returns the holder of a lock. Returns `None` when the lock is free or blocked, and when the key
    /// holds something that is not a lock.
    ///
    /// # Errors
    /// As [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on any lock.
    pub async fn holder(&self, name: impl Into<LockName>) -> Result<Option<HolderInfo>, LockError> {
        Ok(self.inspect(name).await?.into_holder())
    }
}

impl ManagerInner {
    /// Checks that the manager can reach its backend, and returns the key of a name.
    fn admin_key(&self, name: &LockName) -> Result<LockKey, LockError> {
        self.check_admin()?;
        let key = LockKey::new(&self.config.prefix, name)
            .map_err(|reason| LockError::invalid_name(name, reason))?;
        Ok(key.in_dialect(self.config.dialect))
    }
}
