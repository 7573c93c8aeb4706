//! The manager: where locks are asked for.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{self, Handle};
use tokio::sync::watch;

use crate::backend::NotificationSink;
use crate::backend::memory::MemoryBackend;
use crate::backend::url::{self, UrlScheme};
use crate::config::{Handover, ManagerConfig};
#[cfg(feature = "macros")]
use crate::error::BackendErrorKind;
use crate::error::{LockError, ShutdownIncomplete};
use crate::protocol::dialect::{Dialect, InvalidDialectReason};
use crate::protocol::key::LockName;
use crate::protocol::wire::tidy_label;
use crate::request::LockRequest;
use crate::runtime::inner::ManagerInner;
#[cfg(feature = "redis")]
use crate::runtime::inner::check_runtime;
use crate::runtime::notifications::Notifications;
use crate::stats::{Counters, LockStats};
use crate::sync::{Mutex, Process, assert_no_mutex_held};

/// The environment variable that says where locks live when no manager is installed.
const URL_VARIABLE: &str = "DISTRIBUTED_LOCK_URL";
/// What its errors say.
const FROM_VARIABLE: &str = "the URL is that of the environment variable DISTRIBUTED_LOCK_URL";

/// Gives out locks. Cheap to clone; all clones share connections and one keeper thread.
#[derive(Clone)]
pub struct LockManager {
    inner: Arc<ManagerInner>,
}

impl LockManager {
    /// Connects with default settings: see [`LockManagerBuilder::connect`].
    ///
    /// # Errors
    /// [`LockError::Backend`] when the URL is not understood, the server does not answer, or
    /// refuses.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn connect(url: &str) -> Result<Self, LockError> {
        Self::builder().connect(url).await
    }

    /// Locks within this process, on tokio's clock, with no server: for tests and for programs
    /// that run once.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::builder().in_memory()
    }

    /// What the attribute uses: the manager of the [`scope`](Self::scope), the one that was
    /// [installed](Self::install_global), or the one that the environment variable `DISTRIBUTED_LOCK_URL`
    /// names, which is connected once.
    ///
    /// Calls that come while it is being connected wait for the same connection, and share its
    /// failure; that takes no longer than the command timeout, 1 s.
    ///
    /// # Errors
    /// [`LockError::NotConfigured`] when there is none of them, [`LockError::NoRuntime`] outside of a
    /// tokio runtime where it has to be connected, or what connecting says.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn current() -> Result<Self, LockError> {
        if let Ok(scoped) = SCOPE.try_with(Clone::clone) {
            return Ok(scoped);
        }
        let global = GLOBAL.lock().clone();
        if let Some(global) = global {
            return Ok(global);
        }
        by_url().await
    }

    /// What is said when [`current`](Self::current) takes longer than its caller's wait.
    #[cfg(feature = "macros")]
    pub(crate) fn not_in_time() -> LockError {
        let text = "cannot connect to the lock server: no answer in time";
        LockError::backend(BackendErrorKind::TimedOut, text).with_detail(FROM_VARIABLE)
    }

    /// A manager with other settings.
    pub fn builder() -> LockManagerBuilder {
        LockManagerBuilder {
            config: ManagerConfig::default(),
        }
    }

    /// Asks for the lock of that name. The name is checked when the lock is acquired.
    pub fn lock(&self, name: impl Into<LockName>) -> LockRequest {
        LockRequest::new(Arc::clone(&self.inner), name.into())
    }

    /// Makes this the manager that the attribute uses in all of the program.
    ///
    /// # Errors
    /// [`LockError::AlreadyInstalled`] when one is there.
    pub fn install_global(&self) -> Result<(), LockError> {
        let mut global = GLOBAL.lock();
        if global.is_some() {
            return Err(LockError::AlreadyInstalled);
        }
        *global = Some(self.clone());
        Ok(())
    }

    /// Runs a future in which the attribute uses this manager instead of the global one, so
    /// that parallel tests stay apart. Tasks that it spawns are not in the scope.
    ///
    /// # Cancel safety
    /// That of the future.
    pub async fn scope<F: Future>(&self, future: F) -> F::Output {
        SCOPE.scope(self.clone(), future).await
    }

    /// Returns how often something happened that no caller may have seen, such as lost locks and
    /// failed renewals.
    #[must_use]
    pub fn stats(&self) -> LockStats {
        self.inner.counters.read()
    }

    /// Waits until everything that was dropped has been released, at most for the manager's
    /// [`shutdown_timeout`](LockManagerBuilder::shutdown_timeout). Call it before the process
    /// ends, and after the guards are dropped: it does not release a guard that still lives, and a
    /// guard that is dropped as the process ends may keep its key for the ttl. In memory there is
    /// nothing to wait for.
    ///
    /// # Errors
    /// [`ShutdownIncomplete`] when the timeout ended first, because the server did not answer, say.
    /// The releases go on in the background as long as the process lives; where it ends, the locks
    /// end with their ttl.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    ///
    /// # Cancel safety
    /// Dropping the future stops the waiting, not the releases.
    pub async fn shutdown(&self) -> Result<(), ShutdownIncomplete> {
        match self.inner.drain().await {
            0 => Ok(()),
            open => Err(ShutdownIncomplete { open }),
        }
    }
}

impl std::fmt::Debug for LockManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LockManager")
            .field("settings", &self.inner.config)
            .finish_non_exhaustive()
    }
}

/// Builds a [`LockManager`] with other settings than the default ones. Made by
/// [`LockManager::builder`].
#[derive(Clone, Debug)]
#[must_use = "no manager is made before `connect` or `in_memory`"]
pub struct LockManagerBuilder {
    config: ManagerConfig,
}

impl LockManagerBuilder {
    /// Sets the text before every name, in keys and in the channels of waiters. At most 64 bytes,
    /// without braces. Defaults to `lock:`.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.config.prefix = prefix.into();
        self
    }

    /// Sets the ttl of requests that set none: 100 ms to 24 h. Defaults to 30 s.
    pub fn default_ttl(mut self, ttl: Duration) -> Self {
        self.config.default_ttl = ttl;
        self
    }

    /// Sets the wait of requests that set none. Zero makes one attempt. Defaults to 5 s.
    pub fn default_wait(mut self, wait: Duration) -> Self {
        self.config.default_wait = wait;
        self
    }

    /// Sets how long one command may take before its reply is no longer waited for. At least 1 ms.
    /// Defaults to 1 s.
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.config.command_timeout = timeout;
        self
    }

    /// Sets how long [`LockManager::shutdown`] waits for releases. Defaults to 5 s.
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Self {
        self.config.shutdown_timeout = timeout;
        self
    }

    /// Sets the name of the holder on the server and in the errors of other clients. Cut to 96
    /// bytes; control characters are removed. Defaults to host and process id.
    pub fn label(mut self, label: &str) -> Self {
        self.config.label = tidy_label(label).into();
        self
    }

    /// Sets what a release does with waiters. Defaults to [`Handover::Immediate`].
    pub fn handover(mut self, handover: Handover) -> Self {
        self.config.handover = handover;
        self
    }

    /// Sets the dialect of requests that set none: how locks are written on the server, to share
    /// keys with services of other languages. Defaults to [`Dialect::Native`].
    pub fn dialect(mut self, dialect: Dialect) -> Self {
        self.config.dialect = dialect;
        self
    }

    /// Sets the longest interval between polls of a waiter that gets no notification: the first
    /// native waiter behind another client's lock, and all waiters of other dialects, whose interval
    /// doubles from an eighth of this value. Jitter shortens each interval by up to a quarter. Beside
    /// clients that poll more often, a shorter interval gets the lock more often. At least 1 ms.
    /// Defaults to 50 ms.
    pub fn retry_interval(mut self, longest: Duration) -> Self {
        self.config.retry_interval = longest;
        self
    }

    /// Connects to where the URL says: `redis://[user:password@]host[:port][/db]`,
    /// `unix:///path?db=1`, or `memory://`.
    ///
    /// Percent-encode `%`, `/`, `#`, `?` and `@` in user and password yourself.
    ///
    /// # Errors
    /// [`LockError::Backend`] when the URL is not understood, the server does not answer
    /// within the command timeout, refuses, is older than Redis 7.0, a replica, a Sentinel or a node
    /// of a cluster, or its clock differs too much for the dialect;
    /// [`LockError::InvalidTtl`] for a default ttl out of range, [`LockError::InvalidDialect`]
    /// for one that does not fit the dialect, [`LockError::InvalidName`] for a prefix that is too
    /// long, [`LockError::NoRuntime`] outside of a tokio runtime.
    ///
    /// # Panics
    /// On a tokio runtime that was built without its time or IO driver.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    #[cfg_attr(
        not(feature = "redis"),
        allow(clippy::unused_async, reason = "only servers are waited for")
    )]
    pub async fn connect(self, url: &str) -> Result<LockManager, LockError> {
        self.config.check()?;
        match url::scheme(url)? {
            UrlScheme::Memory => self.try_in_memory(),
            #[cfg(feature = "redis")]
            UrlScheme::Redis => self.connect_redis(url).await,
        }
    }

    #[cfg(feature = "redis")]
    async fn connect_redis(self, url: &str) -> Result<LockManager, LockError> {
        check_runtime()?;
        let counters = Arc::new(Counters::default());
        let notifications = Arc::new(Notifications::new(Arc::clone(&counters)));
        let sink: Arc<dyn NotificationSink> = Arc::<Notifications>::clone(&notifications);
        let backend =
            crate::backend::redis::connect(url, &self.config, sink, Arc::clone(&counters));
        let backend = Arc::new(backend.await?);
        let inner = ManagerInner::with_worker(backend, notifications, counters, self.config)?;
        Ok(LockManager {
            inner: Arc::new(inner),
        })
    }

    /// Makes a manager whose locks live within this process: see [`LockManager::in_memory`].
    ///
    /// In memory nothing can fail but a setting. Settings in tests are literals, so this method
    /// panics; [`try_in_memory`](Self::try_in_memory) returns the error.
    ///
    /// # Panics
    /// Panics when a setting is invalid, with the text of the error.
    #[must_use]
    #[track_caller]
    #[expect(
        clippy::panic,
        reason = "documented, with a form that returns the error"
    )]
    pub fn in_memory(self) -> LockManager {
        match self.try_in_memory() {
            Ok(manager) => manager,
            Err(error) => panic!("{error}"),
        }
    }

    /// Makes a manager whose locks live within this process: see [`LockManager::in_memory`].
    ///
    /// # Errors
    /// [`LockError::InvalidTtl`], [`LockError::InvalidName`], [`LockError::InvalidDialect`] and
    /// [`LockError::InvalidSetting`] as [`connect`](Self::connect), and
    /// [`LockError::InvalidDialect`] for every dialect but the native one, which is the only dialect
    /// in memory.
    pub fn try_in_memory(self) -> Result<LockManager, LockError> {
        self.config.check()?;
        let dialect = self.config.dialect;
        if !dialect.capabilities().in_memory {
            let reason = InvalidDialectReason::NoServer;
            return Err(LockError::InvalidDialect { dialect, reason });
        }
        Ok(self.build_in_memory())
    }

    fn build_in_memory(self) -> LockManager {
        let counters = Arc::new(Counters::default());
        let notifications = Arc::new(Notifications::new(Arc::clone(&counters)));
        let sink: Arc<dyn NotificationSink> = Arc::<Notifications>::clone(&notifications);
        let backend = MemoryBackend::new(sink, self.config.grace());
        LockManager {
            inner: Arc::new(ManagerInner::without_worker(
                Arc::new(backend),
                notifications,
                counters,
                self.config,
            )),
        }
    }
}

static GLOBAL: Mutex<Option<LockManager>> = Mutex::new(None);
static BY_URL: Mutex<ByUrl> = Mutex::new(ByUrl {
    connected: None,
    connecting: Vec::new(),
});

/// What is known of the manager that `DISTRIBUTED_LOCK_URL` names.
struct ByUrl {
    connected: Option<LockManager>,
    /// The runtimes on which a task connects. Each waits for its own only: another one may stand
    /// still.
    connecting: Vec<(runtime::Id, Connecting)>,
}

/// What comes of connecting. Closed without an outcome when the runtime ended first.
type Connecting = watch::Receiver<Option<Result<LockManager, LockError>>>;

impl ByUrl {
    fn position(&self, runtime: runtime::Id) -> Option<usize> {
        let mut connecting = self.connecting.iter();
        connecting.position(|(known, _)| *known == runtime)
    }
}

/// The manager that `DISTRIBUTED_LOCK_URL` names. On each runtime one task connects; all who come meanwhile
/// share what comes of it, and whoever comes after a failure tries again.
async fn by_url() -> Result<LockManager, LockError> {
    let runtime = Handle::try_current().map_err(|_| LockError::NoRuntime)?;
    let mut is_first = true;
    loop {
        let (sender, receiver) = watch::channel(None);
        let (mut receiver, sender) = {
            let mut known = BY_URL.lock();
            if let Some(manager) = &known.connected {
                return Ok(manager.clone());
            }
            if let Some(at) = known.position(runtime.id()) {
                (known.connecting[at].1.clone(), None)
            } else {
                known.connecting.push((runtime.id(), receiver.clone()));
                (receiver, Some(sender))
            }
        };
        let is_ours = sender.is_some();
        if let Some(sender) = sender {
            let connecting = ConnectingByUrl {
                runtime: runtime.id(),
                sender,
                process: Process::current(),
            };
            assert_no_mutex_held();
            runtime.spawn(connecting.run());
        }
        if let Ok(outcome) = receiver.wait_for(Option::is_some).await
            && let Some(outcome) = outcome.clone()
        {
            return outcome;
        }
        // A runtime that shuts down drops what is spawned at once. Then this task has to leave its
        // poll, so that it is dropped too. A caller of `Handle::block_on` is not.
        tokio::task::yield_now().await;
        if is_ours && !std::mem::take(&mut is_first) {
            return Err(LockError::NoRuntime);
        }
    }
}

/// The task that connects.
struct ConnectingByUrl {
    runtime: runtime::Id,
    sender: watch::Sender<Option<Result<LockManager, LockError>>>,
    process: Process,
}

impl ConnectingByUrl {
    async fn run(self) {
        let connect = async {
            let url = std::env::var(URL_VARIABLE).map_err(|_| LockError::NotConfigured)?;
            let connected = LockManager::connect(&url).await;
            connected.map_err(|error| error.with_detail(FROM_VARIABLE))
        };
        let outcome = connect.await.map(|manager| {
            // Another runtime may have been faster: there is one manager for all.
            let mut known = BY_URL.lock();
            known
                .connected
                .get_or_insert_with(|| manager.clone())
                .clone()
        });
        self.leave();
        self.sender.send_replace(Some(outcome));
    }

    /// Whoever comes from now on begins anew, unless there is a manager.
    fn leave(&self) {
        let left = {
            let mut known = BY_URL.lock();
            let at = known.position(self.runtime);
            at.map(|at| known.connecting.swap_remove(at))
        };
        drop(left);
    }
}

impl Drop for ConnectingByUrl {
    /// Without an outcome: its runtime has ended. Not in a child, where the mutex may be locked for
    /// ever.
    fn drop(&mut self) {
        let is_done = self.sender.borrow().is_some();
        if !is_done && self.process.is_current() {
            self.leave();
        }
    }
}

tokio::task_local! {
    static SCOPE: LockManager;
}
