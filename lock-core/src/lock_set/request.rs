//! A request for a set of locks, before it is sent.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use super::LockSet;
use super::acquire::{self, SetMembers};
use crate::error::LockError;
use crate::guard;
use crate::request::LockRequest;
use lock_protocol::dialect::Dialect;
use lock_protocol::key::LockName;
use lock_protocol::kind::{InvalidKindReason, Kind, MAX_NAMES};
use lock_protocol::renew::Renew;

/// A request for several locks, of which the caller gets all or none. Made by
/// [`LockManager::lock_all`](crate::LockManager::lock_all).
///
/// The options are those of [`LockRequest`], and are for each of the locks.
/// [`acquire`](Self::acquire), [`try_acquire`](Self::try_acquire) and [`run`](Self::run) send the request.
/// Awaiting the request is the same as `acquire`.
///
/// ```
/// # use lock_core::{LockError, LockManager};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), LockError> {
/// let locks = LockManager::in_memory();
/// let moved = locks
///     .lock_all(["account:7", "account:3"])
///     .wait(Duration::from_secs(2))
///     .run(async |both| both.fencing_token("account:7").is_some())
///     .await?;
/// assert!(moved);
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is sent before `acquire`, `try_acquire` or `run`"]
#[derive(Clone)]
pub struct LockSetRequest {
    /// The options of all locks. Its name is not used.
    options: LockRequest,
    names: Vec<LockName>,
}

impl LockSetRequest {
    pub(crate) fn new(options: LockRequest, names: Vec<LockName>) -> Self {
        Self { options, names }
    }

    /// Sets how long each lock outlives a holder that dies, as [`LockRequest::ttl`] does. Defaults to the
    /// manager's [`default_ttl`](crate::LockManagerBuilder::default_ttl), which is 30 s.
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
    pub fn ttl(self, ttl: Duration) -> Self {
        self.with(|options| options.ttl(ttl))
    }

    /// Sets how long [`acquire`](Self::acquire) and [`run`](Self::run) wait for all locks together. Zero
    /// means one attempt. Where overrides change the wait of some names, the shortest wait counts. Defaults to the
    /// manager's [`default_wait`](crate::LockManagerBuilder::default_wait), which is 5 s.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let busy = locks.lock("account:3").acquire().await?;
    /// let both = locks.lock_all(["account:7", "account:3"]);
    /// let error = both.wait(Duration::from_millis(50)).acquire().await.unwrap_err();
    /// assert!(error.is_contended());
    /// busy.release().await
    /// # }
    /// ```
    pub fn wait(self, wait: Duration) -> Self {
        self.with(|options| options.wait(wait))
    }

    /// Sets whether and how often the locks are renewed while they are held. Defaults to
    /// [`Renew::Auto`].
    ///
    /// With [`Renew::Never`], the lease of the first lock also runs while the set waits for the others.
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
    pub fn renew(self, renew: Renew) -> Self {
        self.with(|options| options.renew(renew))
    }

    /// Sets the longest time for which each lock is held, as [`LockRequest::max_hold`] does. Defaults to no
    /// limit.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager, LossReason};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let request = locks.lock_all(["account:7", "account:3"]).ttl(Duration::from_millis(100));
    /// let both = request.max_hold(Duration::from_millis(150)).acquire().await?;
    /// both.lost().await;
    /// assert_eq!(both.loss_reason(), Some(LossReason::MaxHold));
    /// # Ok(())
    /// # }
    /// ```
    pub fn max_hold(self, max_hold: Duration) -> Self {
        self.with(|options| options.max_hold(max_hold))
    }

    /// Sets the shortest time for which the keys stay locked, as [`LockRequest::min_hold`] does. The time
    /// starts when the whole set is acquired. Defaults to zero.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let request = locks.lock_all(["account:7", "account:3"]);
    /// let both = request.min_hold(Duration::from_secs(10)).acquire().await?;
    /// both.release().await?;
    /// assert!(locks.lock("account:3").try_acquire().await?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn min_hold(self, min_hold: Duration) -> Self {
        self.with(|options| options.min_hold(min_hold))
    }

    /// Sets the format of the locks on the server, as [`LockRequest::dialect`] does. Defaults to the
    /// manager's [`dialect`](crate::LockManagerBuilder::dialect).
    ///
    /// ```
    /// # use lock_core::{Dialect, LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let request = locks.lock_all(["account:7", "account:3"]);
    /// let error = request.dialect(Dialect::SetnxExpire).acquire().await.unwrap_err();
    /// // Locks in memory have the native dialect only.
    /// assert!(matches!(error, LockError::InvalidDialect { .. }));
    /// # Ok(())
    /// # }
    /// ```
    pub fn dialect(self, dialect: Dialect) -> Self {
        self.with(|options| options.dialect(dialect))
    }

    /// Sets the kind of all locks, as [`LockRequest::kind`] does. Defaults to [`Kind::Exclusive`].
    ///
    /// ```
    /// # use lock_core::{Kind, LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let both = locks.lock_all(["account:7", "account:3"]).kind(Kind::Read).acquire().await?;
    /// assert!(both.guards().iter().all(|guard| guard.kind() == Kind::Read));
    /// both.release().await
    /// # }
    /// ```
    pub fn kind(self, kind: Kind) -> Self {
        self.with(|options| options.kind(kind))
    }

    /// Requests all locks for reading, as [`LockRequest::read`] does.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let one = locks.lock_all(["account:3", "account:7"]).read().acquire().await?;
    /// let other = locks.lock_all(["account:7", "account:9"]).read().try_acquire().await?;
    /// assert!(other.is_some());
    /// # one.release().await
    /// # }
    /// ```
    pub fn read(self) -> Self {
        self.with(LockRequest::read)
    }

    /// Requests all locks for writing, as [`LockRequest::write`] does.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let reader = locks.lock("account:7").read().acquire().await?;
    /// let both = locks.lock_all(["account:3", "account:7"]).write().try_acquire().await?;
    /// assert!(both.is_none());
    /// # reader.release().await
    /// # }
    /// ```
    pub fn write(self) -> Self {
        self.with(LockRequest::write)
    }

    /// Requests one of `permits` permits of each name, as [`LockRequest::permits`] does.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let one = locks.lock_all(["cpu", "disk"]).permits(2).acquire().await?;
    /// let two = locks.lock_all(["cpu", "disk"]).permits(2).acquire().await?;
    /// assert!(locks.lock("disk").permits(2).try_acquire().await?.is_none());
    /// # drop((one, two));
    /// # Ok(())
    /// # }
    /// ```
    pub fn permits(self, permits: u32) -> Self {
        self.with(|options| options.permits(permits))
    }

    /// Sets how many permits of each name the holder takes, as [`LockRequest::weight`] does. Defaults to 1.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let large = locks.lock_all(["cpu", "disk"]).permits(4).weight(3).acquire().await?;
    /// assert!(locks.lock("disk").permits(4).weight(2).try_acquire().await?.is_none());
    /// assert!(locks.lock("disk").permits(4).try_acquire().await?.is_some());
    /// # large.release().await
    /// # }
    /// ```
    pub fn weight(self, weight: u32) -> Self {
        self.with(|options| options.weight(weight))
    }

    /// Sets how much of the call's wait has passed already.
    #[cfg(feature = "macros")]
    pub(crate) fn spent(self, spent: Duration) -> Self {
        self.with(|options| options.spent(spent))
    }

    pub(crate) fn with(mut self, set: impl FnOnce(LockRequest) -> LockRequest) -> Self {
        self.options = set(self.options);
        self
    }

    /// As [`acquire`](Self::acquire), for a caller that skips its work when another holder has one of the
    /// locks.
    #[cfg(feature = "macros")]
    pub(crate) async fn acquire_or_skip(self) -> Result<LockSet, LockError> {
        let (options, names) = (self.options.clone(), self.names.clone());
        let result = self.acquire().await;
        if let Err(error) = &result
            && error.is_contended()
        {
            options.report_skip(&names, error);
        }
        result
    }

    /// Acquires all locks. While another holder has one of them, this call waits, at most for the time of
    /// [`wait`](Self::wait).
    ///
    /// The locks are acquired in the order of their keys. While the call waits for one of them, it holds and
    /// renews those before it. When one of them is lost meanwhile, the call releases all, and starts again
    /// within the same wait.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let both = locks.lock_all(["account:7", "account:3"]).acquire().await?;
    /// assert_eq!(both.guards().len(), 2);
    /// both.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    /// - [`LockError::InvalidKind`] when there is no name, or when there are more than 64.
    /// - The errors of [`LockRequest::acquire`] for the first lock that the call does not get. Then it has
    ///   none of them: it releases the others in the background.
    ///
    /// When a name or an option is invalid, nothing is sent. The call returns within the time that
    /// [`LockRequest::acquire`] states.
    ///
    /// # Panics
    /// As [`LockRequest::acquire`].
    ///
    /// # Cancel safety
    /// When the future is dropped, the background worker releases all that the call had acquired, and leaves
    /// the queue.
    pub async fn acquire(self) -> Result<LockSet, LockError> {
        let members = self.members()?;
        Box::pin(acquire::acquire(members)).await
    }

    /// Makes one attempt to acquire all locks. Never waits for another holder, and ignores
    /// [`wait`](Self::wait).
    ///
    /// Returns `None` when another holder has one of the locks. Also returns `None` where
    /// [`acquire`](Self::acquire) fails with [`LockError::WouldDeadlock`].
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let busy = locks.lock("account:7").acquire().await?;
    /// let both = locks.lock_all(["account:7", "account:3"]).try_acquire().await?;
    /// assert!(both.is_none());
    /// assert!(locks.lock("account:3").try_acquire().await?.is_some());
    /// # busy.release().await
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), without `Timeout`, `Contended` and `WouldDeadlock`.
    ///
    /// # Panics
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(self) -> Result<Option<LockSet>, LockError> {
        let mut members = self.members()?;
        members.wait = Duration::ZERO;
        match Box::pin(acquire::acquire(members)).await {
            Ok(set) => Ok(Some(set)),
            Err(LockError::Contended { .. } | LockError::WouldDeadlock { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Acquires the locks as [`acquire`](Self::acquire) does, runs `body`, and releases them.
    ///
    /// Returns the body's result unchanged, even when a release fails. The library traces a failed release
    /// and counts it in [`LockStats`](crate::LockStats).
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let request = locks.lock_all(["account:7", "account:3"]);
    /// let count = request.run(async |both| both.guards().len()).await?;
    /// assert_eq!(count, 2);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`acquire`](Self::acquire), and [`LockError::Lost`] when one of the locks is lost while
    /// the body runs. In that case the library drops the body at its next await, and releases the others.
    ///
    /// # Panics
    /// As [`acquire`](Self::acquire). When the body panics, the locks are released.
    ///
    /// # Cancel safety
    /// Dropping the future drops the body and releases the locks in the background.
    pub async fn run<T>(self, body: impl AsyncFnOnce(&LockSet) -> T) -> Result<T, LockError> {
        let set = self.acquire().await?;
        guard::run(set, body).await
    }

    /// Checks the request, and returns its locks in the order of their keys. A name that is listed twice is
    /// there once.
    fn members(&self) -> Result<SetMembers, LockError> {
        let mut members = Vec::with_capacity(self.names.len().min(MAX_NAMES));
        for name in &self.names {
            members.push(self.options.member(name.clone())?);
        }
        // Text compares by its bytes.
        members.sort_by(|one, other| one.key.as_str().cmp(other.key.as_str()));
        members.dedup_by(|later, earlier| later.key.as_str() == earlier.key.as_str());
        let reason = match members.len() {
            0 => Some(InvalidKindReason::NoNames),
            1..=MAX_NAMES => None,
            _ => Some(InvalidKindReason::TooManyNames),
        };
        if let Some(reason) = reason {
            return Err(self.options.invalid_kind(reason));
        }
        // An override of one of the names limits the wait for all of them.
        let wait = members.iter().map(|member| member.wait).min();
        Ok(SetMembers {
            inner: self.options.manager().clone(),
            members,
            wait: wait.unwrap_or_default(),
            spent: self.options.time_spent(),
            min_hold: self.options.min_hold_time(),
        })
    }
}

/// Acquires the locks, as [`LockSetRequest::acquire`] does.
impl IntoFuture for LockSetRequest {
    type Output = Result<LockSet, LockError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}

impl fmt::Debug for LockSetRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockSetRequest")
            .field("names", &self.names)
            .field("options", &self.options)
            .finish()
    }
}
