//! The manager: where locks are asked for.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{self, Handle};
use tokio::sync::watch;

use crate::backend::memory::Memory;
use crate::counts::{Counters, Counts};
use crate::dialect::Dialect;
#[cfg(feature = "macros")]
use crate::error::BackendErrorKind;
use crate::error::{LockError, ShutdownIncomplete};
use crate::inbox::Inbox;
use crate::key::LockName;
use crate::options::{MIN_RETRY_INTERVAL, Settings};
use crate::request::LockRequest;
use crate::shared::Core;
#[cfg(feature = "redis")]
use crate::shared::check_runtime;
use crate::sync::{Mutex, Process, assert_no_mutex_held};
use crate::url;
use crate::wire::tidy_label;

/// The environment variable that says where locks live when no manager is installed.
const LOCK_URL: &str = "LOCK_URL";
/// What its errors say.
const FROM_LOCK_URL: &str = "the URL is that of the environment variable LOCK_URL";

/// Gives out locks. Cheap to clone; all clones share connections and one keeper thread.
#[derive(Clone)]
pub struct LockManager {
    core: Arc<Core>,
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
    /// [installed](Self::install_global), or the one that the environment variable `LOCK_URL`
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
        LockError::backend(BackendErrorKind::TimedOut, text).with_detail(FROM_LOCK_URL)
    }

    /// A manager with other settings.
    pub fn builder() -> LockManagerBuilder {
        LockManagerBuilder {
            settings: Settings::default(),
        }
    }

    /// Asks for the lock of that name. The name is checked when the lock is acquired.
    pub fn lock(&self, name: impl Into<LockName>) -> LockRequest {
        LockRequest::new(Arc::clone(&self.core), name.into())
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

    /// What went wrong behind the callers' backs, in numbers.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.core.counters.read()
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
        match self.core.drain().await {
            0 => Ok(()),
            open => Err(ShutdownIncomplete { open }),
        }
    }
}

impl std::fmt::Debug for LockManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LockManager")
            .field("settings", &self.core.settings)
            .finish_non_exhaustive()
    }
}

/// Settings of a manager. Made by [`LockManager::builder`].
#[derive(Clone, Debug)]
#[must_use = "no manager is made before `connect` or `in_memory`"]
pub struct LockManagerBuilder {
    settings: Settings,
}

impl LockManagerBuilder {
    /// What stands before every name in the server, and in the channels of waiters. Holds no brace,
    /// and has at most 64 bytes: `connect` checks the length, and each request all of it. Defaults to
    /// `lock:`.
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.settings.prefix = prefix.into();
        self
    }

    /// The ttl of locks that name none. Defaults to 30 s.
    pub fn default_ttl(mut self, ttl: Duration) -> Self {
        self.settings.default_ttl = ttl;
        self
    }

    /// How long one command may take before its answer is not waited for any more. Defaults
    /// to 1 s.
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.settings.command_timeout = timeout;
        self
    }

    /// How long [`LockManager::shutdown`] waits for releases. Defaults to 5 s.
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Self {
        self.settings.shutdown_timeout = timeout;
        self
    }

    /// What the holder is called in the server and in other clients' errors: at most 96 bytes,
    /// the rest and control characters are left out. Defaults to host and process id.
    pub fn label(mut self, label: &str) -> Self {
        self.settings.label = tidy_label(label).into();
        self
    }

    /// Whether a release leaves the key free for 20 ms, so that clients of other libraries,
    /// which poll for a free key, get their turn beside our queue. Costs those who wait these
    /// 20 ms. Defaults to false: the lock is handed over.
    pub fn share_with_others(mut self, share: bool) -> Self {
        self.settings.share_with_others = share;
        self
    }

    /// The dialect of locks that name none: how they are written on the server, for sharing keys
    /// with services of other languages. Defaults to [`Dialect::Native`].
    pub fn dialect(mut self, dialect: Dialect) -> Self {
        self.settings.dialect = dialect;
        self
    }

    /// The longest pause between two looks of those whom nobody tells that the lock is free: the
    /// first native waiter behind another client's lock, and all who wait in other dialects, where
    /// the pauses double up to this from an eighth of it. Each is shortened by chance, so that many
    /// do not ask in step. Beside clients that poll faster, a shorter one gets its waiters more
    /// turns. At least 1 ms. Defaults to 50 ms.
    pub fn retry_interval(mut self, longest: Duration) -> Self {
        self.settings.retry_interval = longest.max(MIN_RETRY_INTERVAL);
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
        if crate::ttl::Ttl::new(self.settings.default_ttl).is_none() {
            let ttl = self.settings.default_ttl;
            return Err(LockError::InvalidTtl { ttl });
        }
        let dialect = self.settings.dialect;
        dialect
            .check_ttl(self.settings.default_ttl)
            .map_err(|fault| LockError::InvalidDialect { dialect, fault })?;
        self.settings.check_prefix()?;
        match url::scheme(url)? {
            url::Scheme::Memory => Ok(self.in_memory()),
            #[cfg(feature = "redis")]
            url::Scheme::Redis => self.connect_redis(url).await,
        }
    }

    #[cfg(feature = "redis")]
    async fn connect_redis(self, url: &str) -> Result<LockManager, LockError> {
        check_runtime()?;
        let counters = Arc::new(Counters::default());
        let inbox = Arc::new(Inbox::new(Arc::clone(&counters)));
        let backend = crate::backend::redis::connect(
            url,
            &self.settings,
            Arc::clone(&inbox),
            Arc::clone(&counters),
        );
        let backend = Arc::new(backend.await?);
        let core = Core::with_keeper(backend, inbox, counters, self.settings)?;
        Ok(LockManager {
            core: Arc::new(core),
        })
    }

    /// Locks within this process: see [`LockManager::in_memory`].
    #[must_use]
    pub fn in_memory(self) -> LockManager {
        let counters = Arc::new(Counters::default());
        let inbox = Arc::new(Inbox::new(Arc::clone(&counters)));
        let backend = Memory::new(Arc::clone(&inbox), self.settings.grace());
        LockManager {
            core: Arc::new(Core::without_keeper(
                Arc::new(backend),
                inbox,
                counters,
                self.settings,
            )),
        }
    }
}

static GLOBAL: Mutex<Option<LockManager>> = Mutex::new(None);
static BY_URL: Mutex<ByUrl> = Mutex::new(ByUrl {
    connected: None,
    connecting: Vec::new(),
});

/// What is known of the manager that `LOCK_URL` names.
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

/// The manager that `LOCK_URL` names. On each runtime one task connects; all who come meanwhile
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
            let url = std::env::var(LOCK_URL).map_err(|_| LockError::NotConfigured)?;
            let connected = LockManager::connect(&url).await;
            connected.map_err(|error| error.with_detail(FROM_LOCK_URL))
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
