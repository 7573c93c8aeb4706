//! A lock that is asked for.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire;
use crate::dialect::Dialect;
use crate::error::LockError;
use crate::guard::{self, LockGuard};
use crate::key::{LockKey, LockName};
use crate::lease::Terms;
use crate::options::Renew;
use crate::shared::Core;
use crate::ttl::Ttl;

/// A lock that is asked for: made by [`LockManager::lock`](crate::LockManager::lock), sent by
/// [`acquire`](Self::acquire), [`try_acquire`](Self::try_acquire) or [`run`](Self::run). To await
/// it is to acquire: `locks.lock("order:42").await?`.
#[must_use = "nothing is asked for before `acquire`, `try_acquire` or `run`"]
#[derive(Clone)]
pub struct LockRequest {
    core: Arc<Core>,
    name: LockName,
    dialect: Dialect,
    ttl: Duration,
    wait: Option<Duration>,
    renew: Renew,
    max_hold: Option<Duration>,
    min_hold: Option<Duration>,
    /// Of the time that the call may take, before it was made.
    spent: Duration,
}

impl LockRequest {
    pub(crate) fn new(core: Arc<Core>, name: LockName) -> Self {
        let ttl = core.settings.default_ttl;
        let dialect = core.settings.dialect;
        Self {
            core,
            name,
            dialect,
            ttl,
            wait: None,
            renew: Renew::default(),
            max_hold: None,
            min_hold: None,
            spent: Duration::ZERO,
        }
    }

    /// So much of the time that the call may take has passed already.
    #[cfg(feature = "macros")]
    pub(crate) fn spent(mut self, spent: Duration) -> Self {
        self.spent = spent;
        self
    }

    /// How long the lock outlives a holder that dies: 100 ms to 24 h, a part of a millisecond
    /// counting as a whole one. A living holder's lock is renewed. Defaults to the manager's,
    /// 30 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// How the lock is written on the server. Those who share a key have to agree; the native
    /// dialect and those that write an owner and an expiry respect each other. Defaults to the
    /// manager's.
    pub fn dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = dialect;
        self
    }

    /// How long to wait for the lock. First come, first served, among those who wait, in the
    /// native dialect. Defaults to not waiting at all.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Whether and how often the lock is renewed while it is held. Defaults to [`Renew::Auto`].
    pub fn renew(mut self, renew: Renew) -> Self {
        self.renew = renew;
        self
    }

    /// The longest that the lock is held, whatever renews it: then it is lost. For bodies that
    /// may hang, and guards that may be forgotten. Longer than the ttl, and not with
    /// [`Renew::Never`]. Defaults to no limit.
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.max_hold = Some(longest);
        self
    }

    /// The shortest time for which the lock stays locked, also when it is released before: for
    /// jobs that are started on many machines at about the same time and shall run on one. The
    /// holder does not wait for it, and gets no more of it than others. Shorter than the ttl.
    /// Defaults to no such time.
    pub fn min_hold(mut self, shortest: Duration) -> Self {
        self.min_hold = Some(shortest);
        self
    }

    /// Gets the lock, now or within [`wait`](Self::wait).
    ///
    /// # Errors
    /// [`LockError::Contended`] when somebody holds it and the request is not to wait,
    /// [`LockError::Timeout`] when it was not free within the wait. [`LockError::Backend`] when
    /// the server cannot be asked: at once, or, where asking again may help, at the end of the
    /// wait. [`LockError::WouldDeadlock`] inside a body of [`run`](Self::run) or of the attribute
    /// that holds the same lock. [`LockError::ForeignKey`] when the key holds no lock, and the
    /// errors of names, times and dialects that cannot be. [`LockError::NoRuntime`] outside of a tokio
    /// runtime, [`LockError::Forked`] in a forked child.
    ///
    /// Returns within the wait and 250 ms; without a wait, within the command timeout, or within
    /// 250 ms where that is longer, because a key without expiry is polled for about 200 ms.
    ///
    /// # Panics
    /// As tokio's timers do: on a runtime without its time driver, and through
    /// [`Handle::block_on`](tokio::runtime::Handle::block_on) when the runtime is shut down during
    /// the call.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue; a lock that was granted meanwhile
    /// is released.
    pub async fn acquire(self) -> Result<LockGuard, LockError> {
        let (key, terms) = self.checked()?;
        // Boxed, so that a caller's future does not carry the states of waiting.
        let mut guard = match self.wait {
            Some(wait) if !wait.is_zero() => {
                Box::pin(acquire::wait_for(&self.core, key, terms, wait, self.spent)).await
            }
            Some(_) | None => Box::pin(acquire::try_once(&self.core, key, terms, self.spent)).await,
        }?;
        if let Some(shortest) = self.min_hold {
            guard.keep_for(shortest);
        }
        Ok(guard)
    }

    /// Gets the lock if it is free, or waits for it as long as [`wait`](Self::wait) says, and
    /// gives `None` when it is held: by somebody else, or by this task further up.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), but for those that say that the lock is held.
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(self) -> Result<Option<LockGuard>, LockError> {
        match self.acquire().await {
            Ok(guard) => Ok(Some(guard)),
            Err(error) if error.is_contended() => Ok(None),
            Err(LockError::WouldDeadlock) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Gets the lock, runs `body` while it is held, and releases it. The body's result is
    /// returned as it is, also when the release fails afterwards, which is traced.
    ///
    /// Write the body as `async |held| { .. }`: a plain closure that returns a future cannot
    /// borrow the guard.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), and [`LockError::Lost`] when the lock was lost: then the
    /// body was dropped at its next await.
    ///
    /// # Cancel safety
    /// Dropping the future drops the body and releases the lock.
    pub async fn run<T>(self, body: impl AsyncFnOnce(&LockGuard) -> T) -> Result<T, LockError> {
        let guard = self.acquire().await?;
        guard::run(guard, body).await
    }

    fn checked(&self) -> Result<(LockKey, Terms), LockError> {
        let key = LockKey::new(&self.core.settings.prefix, &self.name)
            .map_err(|fault| LockError::invalid_name(&self.name, fault))?;
        let ttl = Ttl::new(self.ttl).ok_or(LockError::InvalidTtl { ttl: self.ttl })?;
        let dialect = self.dialect;
        self.core
            .check_dialect(dialect)
            .and_then(|()| dialect.check_ttl(ttl.as_duration()))
            .map_err(|fault| LockError::InvalidDialect { dialect, fault })?;
        let key = key.in_dialect(dialect);
        let renew = self.renew.check(ttl)?;
        let max_hold = self.max_hold;
        if let Some(longest) = max_hold
            && (longest <= ttl.as_duration() || renew == Renew::Never)
        {
            return Err(LockError::InvalidMaxHold { longest });
        }
        if let Some(shortest) = self.min_hold
            && shortest >= ttl.as_duration()
        {
            return Err(LockError::InvalidMinHold { shortest });
        }
        let terms = Terms {
            ttl,
            renew,
            max_hold,
            margin: dialect.margin(),
        };
        Ok((key, terms))
    }
}

/// As [`LockRequest::acquire`].
impl IntoFuture for LockRequest {
    type Output = Result<LockGuard, LockError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}

impl std::fmt::Debug for LockRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LockRequest")
            .field("name", &self.name)
            .field("dialect", &self.dialect)
            .field("ttl", &self.ttl)
            .field("wait", &self.wait)
            .field("renew", &self.renew)
            .field("max_hold", &self.max_hold)
            .field("min_hold", &self.min_hold)
            .finish_non_exhaustive()
    }
}
