//! What operators see of locks, and what they do with them. [`LockManager::admin`] is the way in.
//!
//! [`Admin::inspect`] reads a lock with its waiters, [`Admin::list`] lists locks, and [`Admin::force_release`] takes a lock
//! away from its holder. The guide [`operations`](crate::guide::operations) has the runbooks, and `lockctl` is a program
//! that does the same.

use std::fmt;
use std::sync::Arc;

use crate::error::{Holder, LockError};
use crate::manager::LockManager;
use crate::runtime::inner::ManagerInner;
use lock_protocol::inspection::{InspectDetail, InspectReply};
use lock_protocol::key::{LockKey, LockName};

mod error;
mod info;
mod list;
mod release;

pub use self::error::AdminError;
pub use self::info::{LockInfo, LockStatus, WaiterInfo};
pub use self::list::{Cursor, ListLocks, LockPage, MissingNode};
pub use self::release::{ForceRelease, Revocation};

impl LockManager {
    /// Returns the holder of a lock. Returns `None` when the lock is free, kept or blocked, and when the key
    /// holds something that is not a lock. When several hold the lock, it has the label of the first one.
    ///
    /// This is one read-only command, which needs no more rights than locking does. The lock may have changed when the
    /// reply arrives, so use it for people and for monitoring. [`Admin::inspect`] also reads the waiters.
    ///
    /// # Errors
    /// As [`Admin::inspect`].
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on any lock.
    pub async fn holder(&self, name: impl Into<LockName>) -> Result<Option<Holder>, LockError> {
        let info = self.admin().inspect(name).await?;
        Ok(info.into_holder())
    }

    /// Returns the operations of operators: they inspect and list locks, and take locks from their holders.
    ///
    /// They are apart from the manager, so that a review finds their uses with one search.
    #[must_use]
    pub fn admin(&self) -> Admin {
        Admin {
            inner: Arc::clone(self.inner()),
        }
    }
}

/// The operations of operators. Made by [`LockManager::admin`].
#[derive(Clone)]
pub struct Admin {
    inner: Arc<ManagerInner>,
}

impl Admin {
    /// Reads a lock: its holder, and its waiters in the order in which they get the lock.
    ///
    /// This is one read-only command, which needs no more rights than locking does. The lock may have changed when the
    /// reply arrives, so use it for people and for monitoring. To act on the result, pass it to
    /// [`expect_unchanged`](ForceRelease::expect_unchanged). The name is read in the manager's
    /// [`dialect`](crate::LockManagerBuilder::dialect); locks of the other dialects that write an owner are found too.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lock_core::LockError> {
    /// # let locks = lock_core::LockManager::in_memory();
    /// let _held = locks.lock("order:42").acquire().await?;
    /// let info = locks.admin().inspect("order:42").await?;
    /// assert!(info.holder().is_some());
    /// assert_eq!(info.waiters_total, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - [`LockError::Invalid`] when the name is invalid.
    /// - [`LockError::Backend`] when the server does not reply within the command timeout, or when the
    ///   user may not read the lock.
    /// - [`LockError::NoQuorum`] when too few servers of a quorum reply.
    /// - [`LockError::ForeignKey`] when the queue of the lock has another type.
    /// - [`LockError::NoRuntime`] outside of a tokio runtime.
    /// - [`LockError::Forked`] in a forked child.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on any lock.
    pub async fn inspect(&self, name: impl Into<LockName>) -> Result<LockInfo, LockError> {
        let inner = &self.inner;
        inner.inspect(name.into(), InspectDetail::Short).await
    }

    /// Reads a lock as [`inspect`](Self::inspect) does, and identifies the value of another library that is a hash, as
    /// Redisson's locks are. [`remove_foreign`](ForceRelease::remove_foreign) together with
    /// [`expect_unchanged`](ForceRelease::expect_unchanged) then removes only this hash. A manager in the dialect
    /// [`Redisson`](crate::dialect::Dialect::Redisson) identifies its locks only: inspect other hashes with a manager in
    /// another dialect.
    ///
    /// For a hash, the server reads all of it, and the user needs the right `+dump`.
    ///
    /// # Errors
    /// As [`inspect`](Self::inspect).
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on any lock.
    pub async fn inspect_foreign(&self, name: impl Into<LockName>) -> Result<LockInfo, LockError> {
        let inner = &self.inner;
        inner.inspect(name.into(), InspectDetail::Digest).await
    }

    /// Makes a request for a list of the locks whose names match the pattern. Await it to send it.
    ///
    /// The pattern is a glob of Redis: `*`, `?`, `[a-z]`, `[^a]`, and `\\` before a special character.
    /// `*` lists all locks of the manager's prefix.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lock_core::LockError> {
    /// # let locks = lock_core::LockManager::in_memory();
    /// let _held = locks.lock("order:42").acquire().await?;
    /// let mut next = None;
    /// loop {
    ///     let page = locks.admin().list("order:*").limit(200).after(next).await?;
    ///     for lock in page.locks {
    ///         println!("{} {:?}", lock.key, lock.status);
    ///     }
    ///     next = page.next;
    ///     if next.is_none() {
    ///         break;
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The list is not a snapshot. A lock that is acquired or released meanwhile may be missing, and a
    /// lock may be on two pages. One page takes at most 100 `SCAN` commands of about 500 keys. A server with very
    /// many keys of other programs needs many pages. A node of a cluster that cannot be read now is left out, and
    /// [`LockPage::missing`] names it. After any other error, a page has the locks that were found before it;
    /// the next page begins there. At a quorum it is the list of one server, which may have locks that no majority
    /// holds: inspect a lock before you act on it.
    ///
    /// # Errors
    /// - [`LockError::Backend`] when the server does not reply to a command within the command timeout,
    ///   or when the user may not list. Applications do not need that right, and should not have it:
    ///   `SCAN` shows the names of all keys of the server.
    /// - [`LockError::NoRuntime`] outside of a tokio runtime.
    /// - [`LockError::Forked`] in a forked child.
    ///
    /// # Cancel safety
    /// Dropping the future has no effect on any lock.
    pub fn list(&self, pattern: impl Into<String>) -> ListLocks {
        ListLocks::new(Arc::clone(&self.inner), pattern.into())
    }

    /// Makes a request that takes a lock from its holder. Await it to send it.
    ///
    /// By default it **revokes** the lock: the key has no owner any more, but stays locked until the
    /// old lease ends. So exclusion holds. The holder learns of it at its next renewal (by default at most a
    /// third of its ttl later, and with [`Renew::Every`](crate::Renew::Every) at most half): its lock is lost, and
    /// [`loss_reason`](crate::LockGuard::loss_reason) returns the operator and the reason. A holder
    /// that does not renew learns of it when its lease ends. The waiters get the lock when the old
    /// lease ends. [`free_at_once`](ForceRelease::free_at_once) frees the key at once, and a name that is
    /// [done](LockStatus::Done) for its period is free at once in any case. Readers, and holders of permits,
    /// all lose the lock.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = lock_core::LockManager::in_memory();
    /// # let _held = locks.lock("import").acquire().await?;
    /// let seen = locks.admin().inspect("import").await?;
    /// if seen.holder().is_some() {
    ///     let request = locks.admin().force_release("import").reason("stuck import");
    ///     let revoked = request.expect_unchanged(&seen).await?;
    ///     println!("free in {:?}", revoked.free_in);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The request is sent once. After an error of the connection the lock may or may not be
    /// released: inspect it.
    ///
    /// # Errors
    /// - [`AdminError::Changed`] when the lock does not have the expected token, or has changed.
    /// - [`AdminError::Foreign`] when the key holds the value of another library, or a lock in the dialect
    ///   [`DeadlineGetset`](crate::dialect::Dialect::DeadlineGetset), which has no owner.
    /// - [`AdminError::NoExpiry`] when the key to revoke has no expiry.
    /// - [`AdminError::Lock`] with the errors of [`inspect`](Self::inspect), and with
    ///   [`LockError::Invalid`] when `expect_unchanged` got what was seen of another lock, or when
    ///   a hash is to be removed that was not identified.
    ///
    /// # Cancel safety
    /// Dropping the future does not undo a release that was sent.
    #[doc(alias = "revoke")]
    pub fn force_release(&self, name: impl Into<LockName>) -> ForceRelease {
        ForceRelease::new(Arc::clone(&self.inner), name.into())
    }
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Admin")
            .field("settings", &self.inner.settings)
            .finish_non_exhaustive()
    }
}

impl ManagerInner {
    async fn inspect(&self, name: LockName, detail: InspectDetail) -> Result<LockInfo, LockError> {
        let key = self.admin_key(&name)?;
        let limit = self.settings.command_timeout;
        let reply = self.store.inspect(&key, detail, limit).await?;
        Ok(self.info(&key, name, &reply))
    }

    pub(crate) fn info(&self, key: &LockKey, name: LockName, reply: &InspectReply) -> LockInfo {
        LockInfo::new(key, name, reply, &|owner_id| self.is_own(owner_id))
    }

    /// Checks that the manager can reach its store, and returns the key of a name.
    fn admin_key(&self, name: &LockName) -> Result<LockKey, LockError> {
        self.check_admin()?;
        self.key(name)
    }

    pub(crate) fn key(&self, name: &LockName) -> Result<LockKey, LockError> {
        let key = LockKey::new(&self.settings.prefix, name)
            .map_err(|reason| LockError::invalid_name(name, reason))?;
        Ok(key.in_dialect(self.settings.dialect))
    }
}
