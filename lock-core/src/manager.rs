//! The manager, which connects to a server and makes requests for locks.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use crate::config::address_map::AddressMap;
use crate::config::holder_tag::HolderTag;
use crate::config::manager_config::without_password;
use crate::config::{Handover, Settings};
#[cfg(feature = "macros")]
use crate::error::BackendErrorKind;
use crate::error::{InvalidSetting, LockError, ShutdownIncomplete};
use crate::guard::LockGuard;
use crate::health::LockStats;
use crate::memory::MemoryStore;
use crate::request::{LockRequest, Names};
use crate::runtime::inner::ManagerInner;
use crate::runtime::notifications::Notifications;
use crate::store::{NotificationSink, Store};
use crate::telemetry::Reporter;
use crate::telemetry::{self, KeyDisplay, LockObserver, ObserverHandle, PanicSource};
use lock_protocol::dialect::Dialect;
use lock_protocol::key::LockName;
use lock_protocol::ticket::LockTicket;
use lock_protocol::wire::tidy_label;

mod configured;
#[cfg(feature = "macros")]
mod declared;
mod default;
mod url;

#[cfg(feature = "macros")]
use self::default::FROM_VARIABLE;
pub(crate) use self::default::SCOPE;
use self::default::by_url;

/// Connects to a lock server and makes requests for locks.
///
/// A manager is cheap to clone. All clones share their connections and one background worker, which
/// renews locks and sends releases.
#[derive(Clone)]
pub struct LockManager {
    inner: Arc<ManagerInner>,
}

impl LockManager {
    /// Connects to a server with default settings: see [`LockManagerBuilder::connect`].
    ///
    /// # Errors
    /// The errors of [`LockManagerBuilder::connect`]: mostly [`LockError::Backend`], when the URL is invalid, or
    /// when the server does not reply in time or refuses the connection.
    ///
    /// # Panics
    /// As for [`LockManagerBuilder::connect`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves no connection and no task behind.
    pub async fn connect(url: impl Into<String>) -> Result<Self, LockError> {
        Self::builder().connect(url).await
    }

    /// Makes a manager whose locks exist only in this process. It needs no server, and its leases
    /// end on tokio's clock.
    ///
    /// Use it in tests, and in programs that run as one process only.
    #[must_use]
    pub fn in_memory() -> Self {
        let (manager, _) = Self::builder().in_memory_unchecked(|memory| memory);
        manager
    }

    /// Returns the manager that the attribute uses. Does no IO.
    ///
    /// This is the manager of the innermost [`scope`](Self::scope), or else the manager that
    /// [`install_global`](Self::install_global) installed, or else the manager that an annotated function or
    /// [`current_or_connect`](Self::current_or_connect) has connected to the URL in the environment variable
    /// `DISTRIBUTED_LOCK_URL`.
    ///
    /// A task is outside of its caller's scope: get the manager here and pass it on.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// # LockManager::in_memory().scope(async {
    /// let locks = LockManager::current()?;
    /// let task = tokio::spawn(async move { locks.lock("order:7").acquire().await });
    /// # task.await.expect("no panic")?.release().await
    /// # }).await
    /// # }
    /// ```
    ///
    /// # Errors
    /// - [`LockError::NotConfigured`] when there is no such manager, even if the variable is set: call
    ///   [`current_or_connect`](Self::current_or_connect) to connect to its URL.
    /// - [`LockError::Forked`] in a forked child whose parent had installed a manager, until the child installs one.
    pub fn current() -> Result<Self, LockError> {
        match default::current()? {
            Some(manager) => Ok(manager),
            None => Err(LockError::NotConfigured),
        }
    }

    /// Returns the manager that the attribute uses, and connects it first if there is none yet.
    ///
    /// Where [`current`](Self::current) finds no manager, this method connects as [`from_env`](Self::from_env) does: to
    /// the URL in the environment variable `DISTRIBUTED_LOCK_URL`. Later calls return that manager.
    ///
    /// Concurrent calls on one runtime wait for the same connection attempt, and get the same error
    /// when it fails. The attempt takes at most the command timeout, which is 1 s unless
    /// `DISTRIBUTED_LOCK_COMMAND_TIMEOUT` is set.
    ///
    /// # Errors
    /// - [`LockError::NotConfigured`] when there is no manager and the variable is not set.
    /// - [`LockError::NoRuntime`] when the method has to connect outside of a tokio runtime.
    /// - [`LockError::Forked`] in a forked child whose parent had installed a manager, until the child installs one.
    /// - The errors of [`from_env`](Self::from_env).
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the connection attempt. Later calls use its outcome.
    pub async fn current_or_connect() -> Result<Self, LockError> {
        match default::current()? {
            Some(manager) => Ok(manager),
            None => by_url().await,
        }
    }

    /// The error of a [`current_or_connect`](Self::current_or_connect) that takes longer than its caller's wait.
    #[cfg(feature = "macros")]
    pub(crate) fn not_in_time() -> LockError {
        let text = "cannot connect to the lock server: no answer in time";
        LockError::backend(BackendErrorKind::TimedOut, text).with_detail(FROM_VARIABLE)
    }

    /// Returns a builder, to change the default settings.
    pub fn builder() -> LockManagerBuilder {
        LockManagerBuilder {
            settings: Settings::default(),
            observer: None,
            url: None,
        }
    }

    /// Makes a request for the lock with this name. Acquiring the lock checks the name.
    pub fn lock(&self, name: impl Into<LockName>) -> LockRequest {
        LockRequest::new(Arc::clone(&self.inner), name.into())
    }

    /// Takes over the lock of a [ticket](crate::LockTicket), and returns a guard. Of several callers that resume one ticket,
    /// exactly one gets the lock. Its [fencing token](crate::LockGuard::fencing_token) is greater than the ticket's.
    ///
    /// The guard has the manager's settings, as one of [`lock`](Self::lock) has, whatever the settings of the guard that made
    /// the ticket were. [`LockRequest::resume`] changes them. While the server is away, the call goes on for the manager's
    /// [`default_wait`](LockManagerBuilder::default_wait). It never waits for another holder.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = LockManager::in_memory();
    /// let order = locks.lock("order:42").acquire().await?;
    /// let text = order.into_ticket(Duration::from_secs(60)).await?.to_string();
    ///
    /// let ticket: lock_core::LockTicket = text.parse()?;
    /// let order = locks.resume(ticket.clone()).await?;
    /// let error = locks.resume(ticket).await.unwrap_err();
    /// assert!(matches!(error, LockError::TicketEnded { .. }), "{error}");
    /// order.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// - [`LockError::TicketEnded`] when another caller has resumed the ticket, when its lease has ended, or when an operator
    ///   released the lock.
    /// - [`LockError::Invalid`] with [`InvalidSetting::Ticket`](crate::error::InvalidSetting::Ticket) when the ticket is of
    ///   another prefix, when this manager's dialect isn't the native one, or when it uses a quorum of servers.
    /// - [`LockError::Backend`], [`LockError::ShuttingDown`], [`LockError::WouldDeadlock`], [`LockError::NoRuntime`] and
    ///   [`LockError::Forked`] as for an [acquire](LockRequest::acquire). The ticket stays valid, unless the server has
    ///   exchanged the owner and only the reply was lost: then the lock is released in the background.
    ///
    /// # Cancel safety
    /// When the future is dropped before the server has exchanged the owner, the ticket stays valid. Otherwise the lock is
    /// released in the background.
    pub async fn resume(&self, ticket: LockTicket) -> Result<LockGuard, LockError> {
        self.lock(ticket.name()).resume(ticket).await
    }

    /// Makes a request for several locks at once, of which the caller gets all or none.
    ///
    /// A set has 1 to 64 names. A name that is listed twice is locked once. See [`LockSet`](crate::LockSet).
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let both = locks.lock_all(["account:7", "account:3"]).acquire().await?;
    /// assert_eq!(both.guards()[0].key(), "lock:account:3");
    /// both.release().await
    /// # }
    /// ```
    pub fn lock_all<N: Into<LockName>>(
        &self,
        names: impl IntoIterator<Item = N>,
    ) -> LockRequest<Names> {
        let names = names.into_iter().map(Into::into).collect();
        LockRequest::of_names(Arc::clone(&self.inner), names)
    }

    /// Installs this manager as the one that the attribute uses in the whole program.
    ///
    /// Call it in `main` only. Tests, and functions that build an app, use [`scope`](Self::scope) or
    /// `web::ScopeLayer` instead, so that several apps can run in one process. Does nothing when a clone
    /// of this manager is already installed.
    ///
    /// # Errors
    /// [`LockError::AlreadyInstalled`] when another manager is already installed.
    pub fn install_global(&self) -> Result<(), LockError> {
        default::install(self)
    }

    /// Runs a future in which the attribute uses this manager instead of the global one.
    ///
    /// Use it to keep parallel tests apart. A task that the future spawns is outside the scope.
    ///
    /// # Cancel safety
    /// Dropping this future drops the inner future. The cancel safety is that of the inner future.
    pub async fn scope<F: Future>(&self, future: F) -> F::Output {
        SCOPE.scope(self.clone(), future).await
    }

    pub(crate) fn inner(&self) -> &Arc<ManagerInner> {
        &self.inner
    }

    /// Returns counters of events that a caller may not have seen, such as lost locks and failed
    /// renewals.
    #[must_use]
    pub fn stats(&self) -> LockStats {
        self.inner.reporter.read().into()
    }

    /// Stops acquiring: all calls that wait for a lock end with [`LockError::ShuttingDown`], and so do all new calls.
    /// Held locks stay held and are renewed until their guards release them. All clones of the manager are closed with
    /// it. There is no way back.
    ///
    /// Call it when the process is asked to stop, before the server of the application waits for the running requests:
    /// otherwise, a request that waits for a lock would hold up the stop for the rest of its wait. Then call
    /// [`shutdown`](Self::shutdown).
    ///
    /// A body that acquires a second lock after the close gets the error, too. Each term of
    /// [`lead`](LockRequest::lead) and of a [`campaign`](LockRequest::campaign) goes on, and no new one begins. After a close, [`ping`](Self::ping) fails, so a
    /// readiness check that calls it takes the instance out of the load balancer.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let held = locks.lock("order:7").acquire().await?;
    /// locks.close();
    /// let refused = locks.lock("order:8").acquire().await;
    /// assert!(matches!(refused, Err(LockError::ShuttingDown)));
    /// assert!(!held.is_lost());
    /// held.release().await?;
    /// # locks.shutdown().await.expect("no lock is held");
    /// # Ok(())
    /// # }
    /// ```
    pub fn close(&self) {
        self.inner.close();
    }

    /// Ends this manager: no call acquires a lock any more, and all locks are released.
    ///
    /// First, all calls that wait for a lock end with [`LockError::ShuttingDown`], and so do all new
    /// calls, unless [`close`](Self::close) has ended them before. Then the method waits until each guard is dropped and each lock is released, at most for
    /// the manager's [`shutdown_timeout`](LockManagerBuilder::shutdown_timeout). A guard that still
    /// exists keeps its lock, which is renewed. All clones of the manager are shut down with it.
    ///
    /// Call this method last before the process ends. The order is: call [`close`](Self::close), accept no new requests,
    /// let the running ones end under a timeout, call `shutdown`. When a guard is dropped while the process ends,
    /// its key may stay locked for the ttl.
    ///
    /// # Errors
    /// [`ShutdownIncomplete`] when guards still exist or releases are still open at the end of the
    /// timeout, for example because the server does not reply. The background worker continues to renew
    /// and to release while the process runs. When the process ends first, the locks expire with their
    /// ttl.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime.
    ///
    /// # Cancel safety
    /// Dropping the future ends the waiting. The manager stays shut down, and the releases continue in
    /// the background.
    pub async fn shutdown(&self) -> Result<(), ShutdownIncomplete> {
        self.inner.shutdown().await
    }
}

impl std::fmt::Debug for LockManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut settings = self.inner.settings.clone();
        // In a forked child nothing may unlock the mutex of the overrides.
        if self.inner.check_process().is_ok() {
            settings.overrides = self.inner.overrides.all();
        }
        f.debug_struct("LockManager")
            .field("settings", &settings)
            .finish_non_exhaustive()
    }
}

/// Builds a [`LockManager`] with settings that differ from the defaults. Made by
/// [`LockManager::builder`].
///
/// One of these methods makes the manager: [`connect`](Self::connect) from a URL, [`connect_to`](Self::connect_to) from
/// an [`Endpoint`](crate::config::Endpoint), [`connect_quorum`](Self::connect_quorum) from one URL for each server,
/// [`build`](Self::build) from the URL of a [`config`](Self::config), and [`in_memory`](Self::in_memory) without a
/// server. [`connect_lazy`](Self::connect_lazy) and its siblings make it while the server is away.
#[derive(Clone)]
#[must_use = "no manager is made before `connect`, `connect_to`, `connect_quorum`, `build` or `in_memory`"]
pub struct LockManagerBuilder {
    settings: Settings,
    observer: Option<ObserverHandle>,
    /// The URL of the configuration.
    url: Option<String>,
}

/// Does not show passwords.
impl std::fmt::Debug for LockManagerBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LockManagerBuilder")
            .field("settings", &self.settings)
            .field("observer", &self.observer)
            .field("url", &self.url.as_deref().map(without_password))
            .finish()
    }
}

impl LockManagerBuilder {
    /// Sets the text before every name, in the keys and in the channels of waiters. The prefix has
    /// at most 64 bytes and no braces. Defaults to `lock:`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.settings.prefix = prefix.into().into();
        self
    }

    /// Sets the ttl of requests that set no ttl, from 100 ms to 24 h. Defaults to 30 s.
    pub fn default_ttl(mut self, ttl: Duration) -> Self {
        self.settings.default_ttl = ttl;
        self
    }

    /// Sets the wait of requests that set no wait. Zero means one attempt. Defaults to 5 s.
    pub fn default_wait(mut self, wait: Duration) -> Self {
        self.settings.default_wait = wait;
        self
    }

    /// Sets the [`max_hold`](LockRequest::max_hold) of requests that set none, so that no lock is held longer by a body that
    /// hangs. A request, an [override](crate::config::Override) or the attribute may set a longer or a shorter one. Must be
    /// longer than the [default ttl](Self::default_ttl). Defaults to no limit.
    ///
    /// A request with [`Renew::Never`](crate::Renew::Never) has no such limit, because it ends with its ttl. Neither has a
    /// term of [`lead`](LockRequest::lead) or [`campaign`](LockRequest::campaign), which may last for as long as the process.
    /// A request whose own ttl is at least as long as this limit fails with [`InvalidSetting::Manager`]: it needs a
    /// `max_hold` of its own.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager, LossReason};
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), LockError> {
    /// let locks = LockManager::builder().default_max_hold(Duration::from_secs(600)).in_memory()?;
    /// let forgotten = locks.lock("order:42").acquire().await?;
    /// forgotten.lost().await;
    /// assert_eq!(forgotten.loss_reason(), Some(LossReason::MaxHold));
    /// # Ok(())
    /// # }
    /// ```
    pub fn default_max_hold(mut self, max_hold: Duration) -> Self {
        self.settings.default_max_hold = Some(max_hold);
        self
    }

    /// Sets how long the manager waits for the reply to one command. At least 1 ms. Defaults to 1 s.
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.settings.command_timeout = timeout;
        self
    }

    /// Sets how long [`LockManager::shutdown`] waits for guards and releases. Defaults to 5 s.
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Self {
        self.settings.shutdown_timeout = timeout;
        self
    }

    /// Sets the label of this manager. Other clients see it as the name of the holder, on the
    /// server and in errors. The label is cut to 96 bytes, and control characters are removed. It must
    /// not be empty then, and must not begin with `revoked by `, as the label of a revoked lock does.
    /// Defaults to the host name and the process id.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.settings.label = tidy_label(&label.into()).into();
        self
    }

    /// Sets a function that returns a tag for each acquisition, such as the id of the caller's trace.
    ///
    /// The function runs on the caller's task when an acquire begins. The tag is appended to the label as ` #tag`:
    /// other clients see it in [`Holder::tag`](crate::Holder::tag), so that they find the holder's trace. It has at
    /// most 32 visible ASCII characters; other characters are removed. The label is cut so that both have 96 bytes.
    /// `None` gives no tag, and so does a panic of the function, which is counted in
    /// [`LockStats`](crate::health::LockStats). Locks in other dialects have no tag.
    ///
    /// The tag is written to the server: return nothing that is secret. Defaults to no tag.
    ///
    /// ```
    /// # use lock_core::LockManager;
    /// tokio::task_local! {
    ///     static TRACE_ID: String;
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), lock_core::LockError> {
    /// let locks = LockManager::builder()
    ///     .holder_tag(|| TRACE_ID.try_with(Clone::clone).ok())
    ///     .in_memory()?;
    /// let traced = TRACE_ID.scope("4bf92f3577b34da6".to_owned(), async {
    ///     locks.lock("order:42").acquire().await
    /// });
    /// let held = traced.await?;
    /// let holder = locks.holder("order:42").await?.expect("it is held");
    /// assert_eq!(holder.tag.as_deref(), Some("4bf92f3577b34da6"));
    /// # drop(held);
    /// # Ok(())
    /// # }
    /// ```
    pub fn holder_tag(mut self, tag: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        self.settings.holder_tag = Some(HolderTag::new(tag));
        self
    }

    /// Sets how a release treats waiters of other libraries. Defaults to [`Handover::Immediate`].
    pub fn handover(mut self, handover: Handover) -> Self {
        self.settings.handover = handover;
        self
    }

    /// Sets the dialect of requests that set no dialect. A dialect is the format of a lock on the
    /// server. Use a dialect to share keys with services in other languages. Defaults to
    /// [`Dialect::Native`].
    pub fn dialect(mut self, dialect: Dialect) -> Self {
        self.settings.dialect = dialect;
        self
    }

    /// Sets the longest interval between polls of a waiter that gets no notification.
    ///
    /// These waiters are the first native waiter behind another client's lock, all waiters at a quorum, and all waiters
    /// in other dialects; in [`Redisson`](crate::dialect::Dialect::Redisson) only those without a subscription. At a
    /// quorum and in other dialects the interval begins at an eighth of this value, and doubles up to it. Jitter
    /// shortens each interval by up to a quarter. With a shorter interval, waiters get the lock more often when other
    /// clients poll often. At least 1 ms. Defaults to 50 ms.
    pub fn retry_interval(mut self, longest: Duration) -> Self {
        self.settings.retry_interval = longest;
        self
    }

    /// Sets how often a server's name is resolved again, so that the manager notices when the name moves to another
    /// primary while the old one keeps running. Single servers and the members of a quorum are followed in this way: see
    /// [`guide::topologies`](crate::guide::topologies#names-that-move). At least 1 ms; zero turns it off. Defaults to
    /// 30 s.
    pub fn resolve_interval(mut self, interval: Duration) -> Self {
        self.settings.resolve_interval = interval;
        self
    }

    /// Sets where this client reaches the servers whose addresses other servers announce: the nodes of a cluster, the
    /// primary behind Sentinels, and the Sentinels. Behind NAT, and where containers publish their ports, a client can't
    /// use the announced addresses. Defaults to the announced addresses. See
    /// [`guide::topologies`](crate::guide::topologies#addresses-that-servers-announce).
    ///
    /// The function gets the host and the port of an announced address, and returns those to use, or `None` for the
    /// announced ones. It is called at each attempt to connect, on any thread, and must not block. If it panics, or
    /// returns an empty host or the port 0, the attempt fails. Addresses of the URL are used as they are. With TLS, it
    /// gets the host name that a node announces first, and then the node's other addresses, until it returns `Some`.
    ///
    /// ```
    /// # use lock_core::LockManager;
    /// // Three containers publish their port 6379.
    /// let builder = LockManager::builder().address_map(|host, _port| {
    ///     let port = match host {
    ///         "172.20.0.2" => 7001,
    ///         "172.20.0.3" => 7002,
    ///         "172.20.0.4" => 7003,
    ///         _ => return None,
    ///     };
    ///     Some(("localhost".to_owned(), port))
    /// });
    /// # drop(builder);
    /// ```
    pub fn address_map(
        mut self,
        map: impl Fn(&str, u16) -> Option<(String, u16)> + Send + Sync + 'static,
    ) -> Self {
        self.settings.address_map = Some(AddressMap::Function(Arc::new(map)));
        self
    }

    /// Sets the observer, which gets each event of the manager: acquires, waits, losses, renewals,
    /// connections. See [`guide::telemetry`](crate::guide::telemetry). Defaults to none.
    pub fn observer(mut self, observer: impl LockObserver + 'static) -> Self {
        self.observer = Some(ObserverHandle(Arc::new(observer)));
        self
    }

    /// Makes events show the template of a lock's name in place of its key. Use it when keys contain personal data.
    /// Errors still contain the key. By default, events show the key.
    pub fn redact_keys(mut self) -> Self {
        self.settings.redact_keys = true;
        self
    }

    /// Makes the reporter, with the readers of events.
    fn reporter(&self) -> Reporter {
        let key_display = if self.settings.redact_keys {
            KeyDisplay::Template
        } else {
            KeyDisplay::Key
        };
        let reporter = Reporter::new(self.observer.clone(), key_display);
        reporter.guarded(PanicSource::Recorder, telemetry::metrics::describe);
        reporter
    }

    /// Connects to the server in the URL: `redis://[user:password@]host[:port][/db]`,
    /// `unix:///path?db=1`, or `memory://`. The guide has the URLs of
    /// [several servers](crate::guide::topologies#urls). Replaces the URL of a [configuration](Self::config).
    ///
    /// Percent-encode the characters `%`, `/`, `#`, `?` and `@` in the user and the password, and `:` in the user.
    ///
    /// # Errors
    /// - [`LockError::Backend`] when the URL is invalid or needs a feature that is not enabled, or when the
    ///   server does not reply within the command timeout or refuses the connection.
    /// - [`LockError::Backend`] when the server is a replica or something else than the URL says, or when its clock
    ///   differs too much for the dialect.
    /// - [`LockError::Backend`] when the server is older than Redis 6.2, even if it hides its version. Redis 6.2, and
    ///   compatible services that name that version, run the scripts in [another form](crate::guide::redis), with a
    ///   warning in the log.
    /// - [`LockError::NoQuorum`] when a majority of the servers of `redis+quorum://` does not reply in time.
    /// - [`LockError::Invalid`] when a setting is invalid, with one of these:
    ///   - [`InvalidSetting::Ttl`] when the default ttl is out of range.
    ///   - [`InvalidSetting::Dialect`] when the default ttl, `confirm`, or the servers of the URL do not fit the
    ///     dialect.
    ///   - [`InvalidSetting::Manager`] when the prefix is too long or has a brace, when the label is empty or begins
    ///     with `revoked by `, when the command timeout or the retry interval is too short, when the default `max_hold` is
    ///     not longer than the default ttl, when `confirm` asks for nothing, doesn't fit the command timeout or is set for a quorum.
    ///   - [`InvalidSetting::Override`] when an override has an invalid time.
    /// - [`LockError::NoRuntime`] outside of a tokio runtime.
    ///
    /// # Panics
    /// Panics on a tokio runtime without its time driver or its IO driver.
    ///
    /// # Cancel safety
    /// Dropping the future leaves no connection and no task behind.
    pub async fn connect(mut self, url: impl Into<String>) -> Result<LockManager, LockError> {
        self.url = Some(url.into());
        self.build().await
    }

    /// Makes a manager whose locks live within this process: see [`LockManager::in_memory`].
    ///
    /// ```
    /// # use lock_core::error::InvalidSetting;
    /// # use lock_core::{LockError, LockManager};
    /// let error = LockManager::builder().prefix("{shop}:").in_memory().unwrap_err();
    /// assert!(matches!(error, LockError::Invalid(InvalidSetting::Manager { setting: "prefix", .. })));
    /// ```
    ///
    /// # Errors
    /// [`LockError::Invalid`] as for [`connect`](Self::connect), and for each dialect except the native one, which is
    /// the only one in memory.
    pub fn in_memory(self) -> Result<LockManager, LockError> {
        let (manager, _) = self.in_memory_on(|memory| memory)?;
        Ok(manager)
    }

    /// As [`in_memory`](Self::in_memory), on a store that wraps the memory.
    pub(crate) fn in_memory_on<S: Store>(
        self,
        wrap: impl FnOnce(MemoryStore) -> S,
    ) -> Result<(LockManager, Arc<S>), LockError> {
        self.settings.check()?;
        let dialect = self.settings.dialect;
        MemoryStore::TRAITS
            .check_dialect(dialect)
            .map_err(|reason| InvalidSetting::Dialect { dialect, reason })?;
        Ok(self.in_memory_unchecked(wrap))
    }

    /// The settings are those that [`in_memory_on`](Self::in_memory_on) has checked, or the defaults.
    fn in_memory_unchecked<S: Store>(
        self,
        wrap: impl FnOnce(MemoryStore) -> S,
    ) -> (LockManager, Arc<S>) {
        let reporter = Arc::new(self.reporter());
        let notifications = Arc::new(Notifications::new(Arc::clone(&reporter)));
        let sink: Arc<dyn NotificationSink> = Arc::<Notifications>::clone(&notifications);
        let store = Arc::new(wrap(MemoryStore::new(sink, self.settings.grace())));
        let erased = Arc::<S>::clone(&store);
        let inner = ManagerInner::without_worker(erased, notifications, reporter, self.settings);
        let manager = LockManager {
            inner: Arc::new(inner),
        };
        (manager, store)
    }
}
