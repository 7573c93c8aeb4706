//! A request for a lock, before it is sent.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::error::LockError;
use crate::guard::{self, LockGuard};
use crate::runtime::inner::ManagerInner;
use crate::runtime::waiter;
use crate::telemetry::Caller;
#[cfg(feature = "macros")]
use crate::telemetry::LockEvent;
use lock_protocol::dialect::Dialect;
use lock_protocol::key::{LockKey, LockName};
use lock_protocol::lease::LeaseConfig;
use lock_protocol::renew::Renew;
use lock_protocol::ttl::Ttl;

mod kind;
mod overridden;
mod parts;

pub(crate) use self::kind::RequestedKind;
pub(crate) use self::parts::SetMember;

/// A request for a lock. Made by [`LockManager::lock`](crate::LockManager::lock).
///
/// [`acquire`](Self::acquire), [`try_acquire`](Self::try_acquire) and [`run`](Self::run) send the
/// request. Awaiting the request is the same as `acquire`: `locks.lock("order:42").await?`.
#[must_use = "nothing is sent before `acquire`, `try_acquire` or `run`"]
#[derive(Clone)]
pub struct LockRequest {
    inner: Arc<ManagerInner>,
    name: LockName,
    dialect: Dialect,
    kind: RequestedKind,
    ttl: Duration,
    /// `None` for that of the manager.
    wait: Option<Duration>,
    renew: Renew,
    max_hold: Option<Duration>,
    min_hold: Option<Duration>,
    /// How much of the call's wait had passed before the request was made.
    spent: Duration,
    caller: Caller,
}

impl LockRequest {
    pub(crate) fn new(inner: Arc<ManagerInner>, name: LockName) -> Self {
        let ttl = inner.settings.default_ttl;
        let dialect = inner.settings.dialect;
        Self {
            inner,
            name,
            dialect,
            kind: RequestedKind::default(),
            ttl,
            wait: None,
            renew: Renew::default(),
            max_hold: None,
            min_hold: None,
            spent: Duration::ZERO,
            caller: Caller::Call,
        }
    }

    /// Makes a request of a candidate, which telemetry shows apart from calls.
    pub(crate) fn of_candidate(mut self) -> Self {
        self.caller = Caller::Candidate;
        self
    }

    /// Sets how much of the call's wait has passed already.
    #[cfg(feature = "macros")]
    pub(crate) fn spent(mut self, spent: Duration) -> Self {
        self.spent = spent;
        self
    }

    /// Sets how long the lock outlives a holder that dies, from 100 ms to 24 h. The ttl is rounded up
    /// to whole milliseconds. The background worker renews the lock of a living holder. Defaults to
    /// the manager's [`default_ttl`](crate::LockManagerBuilder::default_ttl), which is 30 s.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// Sets the format of the lock on the server. All services that share a key have to use the
    /// same dialect. There is one exception: the native dialect, and the dialects that write an
    /// owner and an expiry, respect each other's locks. Defaults to the manager's
    /// [`dialect`](crate::LockManagerBuilder::dialect).
    pub fn dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = dialect;
        self
    }

    /// Sets the template of the name, such as `order:{order_id}`. The attribute and `lock_name!` do so
    /// by themselves.
    ///
    /// The template groups all locks of one kind: in metrics, and in settings that are for all names of
    /// a template. It changes neither the name nor the key. Defaults to none, or to the template of the
    /// [`LockName`].
    pub fn template(mut self, template: &'static str) -> Self {
        self.name = self.name.with_template(template);
        self
    }

    /// Sets how long [`acquire`](Self::acquire) and [`run`](Self::run) wait for the lock. Zero means
    /// one attempt. In the native dialect waiters get the lock in the order of their arrival, except at a quorum.
    /// Defaults to the manager's [`default_wait`](crate::LockManagerBuilder::default_wait), which is
    /// 5 s.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Sets whether and how often the lock is renewed while it is held. Defaults to [`Renew::Auto`].
    pub fn renew(mut self, renew: Renew) -> Self {
        self.renew = renew;
        self
    }

    /// Sets the longest time for which the lock is held. At the end of this time the lock is lost,
    /// even if it was renewed. Use this setting against bodies that hang and guards that are never
    /// dropped. The time has to be longer than the ttl, and cannot be combined with
    /// [`Renew::Never`]. Defaults to no limit.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Sets the shortest time for which the key stays locked, even when the release comes earlier.
    /// The time starts when the lock is acquired.
    ///
    /// Use it for jobs that many machines start at about the same time and that one machine has to
    /// run. The release does not wait for the end of this time. The holder cannot acquire the lock
    /// again before the end; of several permits, its own stay taken. The time has to be shorter than
    /// the ttl. Defaults to zero.
    pub fn min_hold(mut self, min_hold: Duration) -> Self {
        self.min_hold = Some(min_hold);
        self
    }

    /// Acquires the lock. While another holder has the lock, this call waits, at most for the time
    /// of [`wait`](Self::wait).
    ///
    /// # Errors
    /// - [`LockError::Timeout`] when another holder had the lock for the whole wait.
    /// - [`LockError::Contended`] when the wait is zero and another holder has the lock.
    /// - [`LockError::Backend`] when the server fails. When a retry may help, the call retries until
    ///   the end of the wait; otherwise it returns the error at once.
    /// - [`LockError::NoQuorum`] when too few servers of a quorum confirm the lock.
    /// - [`LockError::ShuttingDown`] when the manager shuts down before or during the call.
    /// - [`LockError::WouldDeadlock`] inside a body of [`run`](Self::run) or of the attribute that
    ///   holds the same lock. Permits of one number may be acquired inside each other while enough of
    ///   them are left; better take the whole [`weight`](Self::weight) at once.
    /// - [`LockError::ForeignKey`] when the key holds a value that is not a lock, or a lock that
    ///   this dialect cannot share.
    /// - [`LockError::InvalidName`], [`LockError::InvalidTtl`] and the other `Invalid..` errors when
    ///   the request is invalid.
    /// - [`LockError::NoRuntime`] outside of a tokio runtime.
    /// - [`LockError::Forked`] in a forked child.
    ///
    /// The call returns within the wait plus 250 ms. With a wait of zero it returns within the
    /// command timeout, or within 250 ms if the command timeout is shorter. The reason for 250 ms:
    /// a call polls a key without an expiry for about 200 ms.
    ///
    /// # Panics
    /// Panics when tokio's timers panic: on a runtime without its time driver, and in
    /// [`Handle::block_on`](tokio::runtime::Handle::block_on) when the runtime shuts down during the
    /// call.
    ///
    /// # Cancel safety
    /// When the future is dropped, the background worker removes the caller from the queue. If the
    /// server has granted the lock meanwhile, the worker releases it.
    pub async fn acquire(self) -> Result<LockGuard, LockError> {
        let acquiring = self.start(Attempts::UntilWaitEnds)?;
        acquiring.await
    }

    /// As [`acquire`](Self::acquire), for a caller that skips its work when another holder has the lock.
    #[cfg(feature = "macros")]
    pub(crate) async fn acquire_or_skip(self) -> Result<LockGuard, LockError> {
        let (inner, name) = (Arc::clone(&self.inner), self.name.clone());
        let (dialect, kind) = (self.dialect, self.kind.kind);
        let result = self.acquire().await;
        if result.as_ref().is_err_and(LockError::is_contended)
            && let Ok(key) = LockKey::new(&inner.settings.prefix, &name)
        {
            let key = key.in_dialect(dialect);
            let lock = inner.reporter.id(&key).of_kind(kind);
            inner.reporter.emit(&LockEvent::BodySkipped { lock });
        }
        result
    }

    /// Makes one attempt to acquire the lock. Never waits for another holder, and ignores
    /// [`wait`](Self::wait).
    ///
    /// Returns `None` when another holder has the lock. Also returns `None` where
    /// [`acquire`](Self::acquire) fails with [`LockError::WouldDeadlock`].
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire), without `Timeout`, `Contended` and `WouldDeadlock`.
    ///
    /// # Panics
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub async fn try_acquire(self) -> Result<Option<LockGuard>, LockError> {
        let acquiring = match self.start(Attempts::One) {
            Ok(acquiring) => acquiring,
            Err(error) => return none_if_busy(Err(error)),
        };
        none_if_busy(acquiring.await)
    }

    /// Begins to acquire the lock. The returned future is small and does not contain the request, so that
    /// the callers' futures stay small.
    fn start(
        mut self,
        attempts: Attempts,
    ) -> Result<impl Future<Output = Result<LockGuard, LockError>> + Send + use<>, LockError> {
        let (key, lease_config);
        if self.inner.overrides.are_set() {
            (key, lease_config, self) = self.overridden()?;
        } else {
            (key, lease_config) = self.checked()?;
        }
        let wait = match attempts {
            Attempts::One => Duration::ZERO,
            Attempts::UntilWaitEnds => self.wait_time(),
        };
        let acquiring = if wait.is_zero() {
            waiter::try_acquire(&self.inner, key, lease_config, self.spent, self.caller)?
        } else {
            let (spent, caller) = (self.spent, self.caller);
            waiter::acquire(&self.inner, key, lease_config, wait, spent, caller)?
        };
        let min_hold = self.min_hold;
        Ok(async move {
            let mut guard = LockGuard::new(acquiring.await?);
            if let Some(min_hold) = min_hold {
                guard.set_min_hold(min_hold);
            }
            Ok(guard)
        })
    }

    /// Acquires the lock as [`acquire`](Self::acquire) does, runs `body`, and releases the lock.
    ///
    /// Returns the body's result unchanged, even when the release fails. The library traces a
    /// failed release and counts it in [`LockStats`](crate::LockStats).
    ///
    /// Write the body as an async closure. It may borrow what is around it, also in a spawned task:
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let mut lines = vec![20, 22];
    /// let total: u32 = locks
    ///     .lock("invoice")
    ///     .run(async |held| {
    ///         assert!(!held.is_lost());
    ///         lines.push(8);
    ///         lines.iter().sum()
    ///     })
    ///     .await?;
    /// assert_eq!(total, 50);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A plain closure that returns a future, `|held| async { .. }`, does not compile: "implementation of `FnOnce` is
    /// not general enough". Its future cannot borrow the guard. Write `async |held| { .. }` instead.
    ///
    /// # Errors
    /// The errors of [`acquire`](Self::acquire), and [`LockError::Lost`] when the lock is lost
    /// while the body runs. In that case the library drops the body at its next await.
    ///
    /// # Panics
    /// As [`acquire`](Self::acquire). When the body panics, the lock is released.
    ///
    /// # Cancel safety
    /// Dropping the future drops the body and releases the lock in the background.
    pub async fn run<T>(self, body: impl AsyncFnOnce(&LockGuard) -> T) -> Result<T, LockError> {
        let guard = self.acquire().await?;
        guard::run(guard, body).await
    }

    /// Returns the manager, the name and the wait of the request.
    #[cfg(feature = "testing")]
    pub(crate) fn parts(&self) -> (&Arc<ManagerInner>, &LockName, Duration) {
        (&self.inner, &self.name, self.wait_time())
    }

    fn checked(&self) -> Result<(LockKey, LeaseConfig), LockError> {
        let key = LockKey::new(&self.inner.settings.prefix, &self.name)
            .map_err(|reason| LockError::invalid_name(&self.name, reason))?;
        let ttl = Ttl::new(self.ttl).ok_or(LockError::InvalidTtl {
            ttl: self.ttl,
            setting: None,
        })?;
        let dialect = self.dialect;
        let traits = self.inner.store.traits();
        traits
            .check_dialect(dialect)
            .and_then(|()| dialect.check_ttl(ttl.as_duration()))
            .map_err(|reason| LockError::InvalidDialect { dialect, reason })?;
        traits.check_ttl(ttl.as_duration())?;
        let key = key.in_dialect(dialect);
        self.kind.check(&self.inner, dialect, self.min_hold)?;
        let renew = self.renew;
        if let Renew::Every(every) = renew
            && !renew.fits(ttl)
        {
            return Err(LockError::InvalidRenewal { every });
        }
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
        let lease_config = LeaseConfig {
            ttl,
            renew,
            max_hold,
            margin: dialect.margin(),
            kind: self.kind.kind,
        };
        Ok((key, lease_config))
    }
}

/// How often a request asks for the lock.
#[derive(Clone, Copy)]
enum Attempts {
    One,
    UntilWaitEnds,
}

fn none_if_busy(acquired: Result<LockGuard, LockError>) -> Result<Option<LockGuard>, LockError> {
    match acquired {
        Ok(guard) => Ok(Some(guard)),
        Err(LockError::Contended { .. } | LockError::WouldDeadlock { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Acquires the lock, as [`LockRequest::acquire`] does.
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
            .field("kind", &self.kind.kind)
            .field("ttl", &self.ttl)
            .field("wait", &self.wait)
            .field("renew", &self.renew)
            .field("max_hold", &self.max_hold)
            .field("min_hold", &self.min_hold)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use crate::manager::LockManager;

    /// The task of each waiter contains this future.
    #[tokio::test]
    async fn futures_of_a_request_are_small() {
        let locks = LockManager::in_memory();
        let acquire = size_of_val(&locks.lock("k").acquire());
        assert!(acquire <= 232, "{acquire}");
        let try_acquire = size_of_val(&locks.lock("k").try_acquire());
        assert!(try_acquire <= 232, "{try_acquire}");
    }
}
