//! Makes managers from configurations: files, the environment, endpoints and overrides.

use std::collections::BTreeMap;
#[cfg(feature = "redis")]
use std::sync::Arc;
use std::time::Duration;

use super::url::{self, Destination};
use super::{LockManager, LockManagerBuilder};
use crate::config::manager_config::ManagerConfig;
use crate::config::overrides::{self, Override};
use crate::error::{InvalidSetting, LockError};
#[cfg(feature = "redis")]
use crate::redis::deployment::Deployment;
#[cfg(feature = "redis")]
use crate::runtime::background::FirstUse;
#[cfg(feature = "redis")]
use crate::runtime::inner::ManagerInner;
#[cfg(feature = "redis")]
use crate::runtime::notifications::Notifications;
#[cfg(feature = "redis")]
use crate::store::{Boxed, NotificationSink, check_runtime};

impl LockManager {
    /// Connects with the configuration in the environment variables `DISTRIBUTED_LOCK_*`: see
    /// [`ManagerConfig::from_env`].
    ///
    /// Each call makes a manager of its own, and does not install it.
    ///
    /// # Errors
    /// - [`LockError::NotConfigured`] when `DISTRIBUTED_LOCK_URL` is not set.
    /// - The errors of [`ManagerConfig::from_env`] and of [`LockManagerBuilder::connect`].
    ///
    /// # Panics
    /// As [`LockManagerBuilder::connect`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves no connection and no task behind.
    pub async fn from_env() -> Result<Self, LockError> {
        if std::env::var_os("DISTRIBUTED_LOCK_URL").is_none() {
            return Err(LockError::NotConfigured);
        }
        let config = ManagerConfig::from_env()?;
        let built = Self::builder().config(config).build().await;
        built.map_err(|error| error.with_detail(super::default::FROM_VARIABLE))
    }

    /// Replaces all overrides: see [`Override`]. Calls from now on use them. Held locks, and calls that
    /// wait already, keep their times. [`clear_overrides`](Self::clear_overrides) removes all overrides.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lock_core::config::Override;
    /// # use lock_core::{LockError, LockManager};
    /// # fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let times = Override::new().ttl(Duration::from_secs(10));
    /// locks.set_overrides([("order:{order_id}", times)])?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`LockError::Invalid`] with [`InvalidSetting::Override`] when a time is invalid, or when the braces of a
    /// template are not balanced. The manager keeps its overrides then. [`LockError::Forked`] in a forked child.
    pub fn set_overrides(
        &self,
        overrides: impl IntoIterator<Item = (impl Into<String>, Override)>,
    ) -> Result<(), LockError> {
        let overrides = collect(overrides);
        overrides::check(&overrides)?;
        self.replace_overrides(overrides)
    }

    /// Removes all overrides, so that calls from now on use the times of the code. Held locks, and calls that wait
    /// already, keep their times.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use lock_core::config::Override;
    /// # use lock_core::{LockError, LockManager};
    /// # fn main() -> Result<(), LockError> {
    /// let locks = LockManager::in_memory();
    /// let times = Override::new().ttl(Duration::from_secs(10));
    /// locks.set_overrides([("order:{order_id}", times)])?;
    /// locks.clear_overrides()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`LockError::Forked`] in a forked child.
    pub fn clear_overrides(&self) -> Result<(), LockError> {
        self.replace_overrides(BTreeMap::new())
    }

    fn replace_overrides(&self, overrides: BTreeMap<String, Override>) -> Result<(), LockError> {
        self.inner.check_process()?;
        let now = self.inner.clock().now();
        self.inner.overrides.replace(overrides, now);
        Ok(())
    }
}

fn collect(
    overrides: impl IntoIterator<Item = (impl Into<String>, Override)>,
) -> BTreeMap<String, Override> {
    let overrides = overrides.into_iter();
    overrides
        .map(|(template, times)| (template.into(), times))
        .collect()
}

impl LockManagerBuilder {
    /// Takes all settings of the configuration that are set, and adds its overrides. Later calls of
    /// setters change them. [`build`](Self::build) connects to its URL.
    pub fn config(mut self, config: ManagerConfig) -> Self {
        if let Some(url) = config.apply(&mut self.settings) {
            self.url = Some(url);
        }
        self
    }

    /// Sets the times of all locks of a template: see [`Override`]. Replaces all overrides that were
    /// set before. [`LockManager::set_overrides`] changes them later. Defaults to none.
    pub fn overrides(
        mut self,
        overrides: impl IntoIterator<Item = (impl Into<String>, Override)>,
    ) -> Self {
        self.settings.overrides = collect(overrides);
        self
    }

    /// Sets the name of the manager's connections, which `CLIENT LIST` shows on the server. The role
    /// `:command` or `:worker` follows the name. Other characters than visible ASCII become
    /// `_`. The parameter `client_name` of the URL does the same. Defaults to `lock:` and the label.
    pub fn client_name(mut self, name: impl Into<String>) -> Self {
        self.settings.client_name = Some(name.into().into());
        self
    }

    /// Adds a duration to the floor of all fencing tokens. At most 48 h. Defaults to zero.
    ///
    /// Tokens grow from the server's clock, plus a minute for each failover of the deployment. When the
    /// locks move to a deployment with fewer failovers, set a minute for each failover of the old one, so
    /// that tokens grow over the move: see the [guide](crate::guide::topologies).
    pub fn fencing_lead(mut self, lead: Duration) -> Self {
        self.settings.fencing_lead = lead;
        self
    }

    /// Connects to the URL of the configuration: see [`config`](Self::config) and
    /// [`ManagerConfig::from_env`]. If the configuration says [`lazy`](ManagerConfig::lazy), it returns at once, as
    /// [`connect_lazy`](Self::connect_lazy) does.
    ///
    /// # Errors
    /// - [`LockError::Invalid`] when the configuration has no URL.
    /// - The errors of [`connect`](Self::connect).
    ///
    /// # Panics
    /// As [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// Dropping the future leaves no connection and no task behind.
    #[cfg_attr(
        not(feature = "redis"),
        allow(clippy::unused_async, reason = "only a server makes it wait")
    )]
    pub async fn build(mut self) -> Result<LockManager, LockError> {
        self.settings.check()?;
        let Some(url) = self.url.take() else {
            let advice = "set `url` in the configuration, or call `connect(url)`";
            return Err(no_server("none", advice));
        };
        match url::read(&url)? {
            Destination::Memory => self.in_memory(),
            #[cfg(feature = "redis")]
            Destination::Redis(deployment) if self.settings.lazy => self.redis_lazy(&deployment),
            #[cfg(feature = "redis")]
            Destination::Redis(deployment) => self.connect_redis(*deployment).await,
        }
    }

    /// Makes a manager for the URL that has no connection yet, for a program that starts before its server does. Replaces
    /// the URL of a [configuration](Self::config).
    ///
    /// The URL, the settings and the certificates are checked now, as [`connect`](Self::connect) checks them. The
    /// background worker connects, and so does the first call. Until then, calls behave as in any outage: they try again
    /// for their [`wait`](crate::LockRequest::wait), or their [`outage_wait`](crate::LockRequest::outage_wait), and then
    /// fail with [`LockError::Backend`], which says that the server has not been reached yet. What can't pass by
    /// itself, such as a wrong password or a server that is too old, fails each call at once. A server that can't
    /// [confirm](Self::confirm) locks fails each call that has got one.
    /// [`health`](LockManager::health) says in [`was_connected`](crate::health::Health::was_connected) whether there has
    /// been a connection, and the event `lock.not_connected` warns.
    ///
    /// Needs no tokio runtime. With TLS, it blocks while it reads certificates, for at most the command timeout.
    ///
    /// ```
    /// # use lock_core::{LockError, LockManager};
    /// # fn main() -> Result<(), LockError> {
    /// # #[cfg(feature = "redis")] {
    /// // Nothing listens there yet.
    /// let locks = LockManager::builder().connect_lazy("redis://127.0.0.1:1")?;
    /// assert!(!locks.health().was_connected);
    /// # }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The errors of [`connect`](Self::connect) that need no server: [`LockError::Invalid`], and [`LockError::Backend`]
    /// when the URL is invalid or needs a feature that is not enabled, or when a certificate can't be read.
    pub fn connect_lazy(self, url: impl Into<String>) -> Result<LockManager, LockError> {
        self.settings.check()?;
        match url::read(&url.into())? {
            Destination::Memory => self.in_memory(),
            #[cfg(feature = "redis")]
            Destination::Redis(deployment) => self.redis_lazy(&deployment),
        }
    }

    #[cfg(feature = "redis")]
    fn redis_lazy(self, deployment: &Deployment) -> Result<LockManager, LockError> {
        let reporter = Arc::new(self.reporter());
        let notifications = Arc::new(Notifications::new(Arc::clone(&reporter)));
        let sink: Arc<dyn NotificationSink> = Arc::<Notifications>::clone(&notifications);
        let settings = self.settings;
        let store = crate::redis::connect_lazily(deployment, &settings, &sink, &reporter)?;
        let first_use = FirstUse::Lazy;
        let inner = ManagerInner::with_worker(store, notifications, reporter, settings, first_use)?;
        Ok(LockManager {
            inner: Arc::new(inner),
        })
    }

    /// In a box: the compiler would copy the future of an `async fn` into each of its callers.
    #[cfg(feature = "redis")]
    fn connect_redis(
        self,
        deployment: Deployment,
    ) -> Boxed<'static, Result<LockManager, LockError>> {
        Box::pin(async move {
            check_runtime()?;
            let reporter = Arc::new(self.reporter());
            let notifications = Arc::new(Notifications::new(Arc::clone(&reporter)));
            let sink: Arc<dyn NotificationSink> = Arc::<Notifications>::clone(&notifications);
            let counted = Arc::clone(&reporter);
            let settings = self.settings;
            let store = crate::redis::connect(deployment, &settings, sink, counted).await?;
            let first_use = FirstUse::Connected;
            let inner =
                ManagerInner::with_worker(store, notifications, reporter, settings, first_use)?;
            Ok(LockManager {
                inner: Arc::new(inner),
            })
        })
    }
}

fn no_server(value: &str, advice: &str) -> LockError {
    LockError::Invalid(InvalidSetting::Manager {
        setting: "url",
        value: value.into(),
        advice: advice.into(),
    })
}

/// What needs a server.
#[cfg(feature = "redis")]
mod redis {
    use std::sync::Arc;
    #[cfg(feature = "quorum")]
    use std::time::Duration;

    use super::{LockManager, LockManagerBuilder};
    use crate::config::confirm::Confirm;
    use crate::config::credentials::CredentialProvider;
    use crate::config::endpoint::Endpoint;
    #[cfg(feature = "__tls")]
    use crate::config::tls::Tls;
    use crate::error::LockError;
    #[cfg(feature = "__doctor")]
    use crate::manager::url::{Destination, read as destination};
    use crate::redis::deployment::Deployment;
    #[cfg(feature = "__doctor")]
    use crate::redis::doctor::{Servers, find};
    #[cfg(feature = "quorum")]
    use crate::redis::url;
    #[cfg(feature = "__doctor")]
    use crate::runtime::notifications::Notifications;
    #[cfg(feature = "__doctor")]
    use crate::store::check_runtime;

    impl LockManagerBuilder {
        /// Connects to a server whose address and login are values instead of a URL: see [`Endpoint`].
        ///
        /// ```no_run
        /// # use lock_core::config::Endpoint;
        /// # use lock_core::{LockError, LockManager};
        /// # #[tokio::main(flavor = "current_thread")]
        /// # async fn main() -> Result<(), LockError> {
        /// let endpoint = Endpoint::tcp("redis.internal", 6379).password("secret");
        /// let locks = LockManager::builder().connect_to(endpoint).await?;
        /// # drop(locks);
        /// # Ok(())
        /// # }
        /// ```
        ///
        /// # Errors
        /// - [`LockError::Invalid`] when the configuration has a URL, or for TLS over a Unix socket.
        /// - The errors of [`connect`](Self::connect).
        ///
        /// # Panics
        /// As [`connect`](Self::connect).
        ///
        /// # Cancel safety
        /// Dropping the future leaves no connection and no task behind.
        pub async fn connect_to(self, endpoint: Endpoint) -> Result<LockManager, LockError> {
            let deployment = self.endpoint(endpoint)?;
            if self.settings.lazy {
                return self.redis_lazy(&deployment);
            }
            self.connect_redis(deployment).await
        }

        /// As [`connect_to`](Self::connect_to), without a connection: see [`connect_lazy`](Self::connect_lazy).
        ///
        /// # Errors
        /// - [`LockError::Invalid`] when the configuration has a URL, or for TLS over a Unix socket.
        /// - The errors of [`connect_lazy`](Self::connect_lazy).
        pub fn connect_to_lazy(self, endpoint: Endpoint) -> Result<LockManager, LockError> {
            let deployment = self.endpoint(endpoint)?;
            self.redis_lazy(&deployment)
        }

        fn endpoint(&self, endpoint: Endpoint) -> Result<Deployment, LockError> {
            self.settings.check()?;
            if self.url.is_some() {
                let advice = "set either a URL or an endpoint, and not both";
                return Err(super::no_server("endpoint and url", advice));
            }
            endpoint.try_into()
        }

        /// Connects to the independent servers of a quorum, each by a URL of its own: for servers with
        /// different users, passwords or certificates. `redis+quorum://a,b,c` is shorter where they are the
        /// same. Each URL names a single server: `redis://` or `rediss://`.
        ///
        /// # Errors
        /// - [`LockError::Backend`] with the kind `InvalidUrl` for fewer than three servers, for one server
        ///   twice, and for a URL that doesn't name a single server.
        /// - [`LockError::NoQuorum`] when fewer than a majority reply within the command timeout.
        /// - [`LockError::Invalid`] when the configuration has a URL.
        /// - The errors of [`connect`](Self::connect).
        ///
        /// # Panics
        /// As [`connect`](Self::connect).
        ///
        /// # Cancel safety
        /// Dropping the future leaves no connection and no task behind.
        #[cfg(feature = "quorum")]
        #[cfg_attr(docsrs, doc(cfg(feature = "quorum")))]
        pub async fn connect_quorum(
            self,
            urls: impl IntoIterator<Item = impl Into<String>>,
        ) -> Result<LockManager, LockError> {
            let deployment = self.quorum(urls)?;
            if self.settings.lazy {
                return self.redis_lazy(&deployment);
            }
            self.connect_redis(deployment).await
        }

        /// As [`connect_quorum`](Self::connect_quorum), without a connection: see
        /// [`connect_lazy`](Self::connect_lazy). A server counts only once it has run for the
        /// [`quarantine`](Self::quarantine), because nothing is known of its past.
        ///
        /// # Errors
        /// - [`LockError::Backend`] with the kind `InvalidUrl` for fewer than three servers, for one server
        ///   twice, and for a URL that doesn't name a single server.
        /// - [`LockError::Invalid`] when the configuration has a URL.
        /// - The errors of [`connect_lazy`](Self::connect_lazy).
        #[cfg(feature = "quorum")]
        #[cfg_attr(docsrs, doc(cfg(feature = "quorum")))]
        pub fn connect_quorum_lazy(
            self,
            urls: impl IntoIterator<Item = impl Into<String>>,
        ) -> Result<LockManager, LockError> {
            let deployment = self.quorum(urls)?;
            self.redis_lazy(&deployment)
        }

        #[cfg(feature = "quorum")]
        fn quorum(
            &self,
            urls: impl IntoIterator<Item = impl Into<String>>,
        ) -> Result<Deployment, LockError> {
            self.settings.check()?;
            if self.url.is_some() {
                let advice = "give the servers to `connect_quorum` only";
                return Err(super::no_server("url and quorum", advice));
            }
            let urls: Vec<_> = urls.into_iter().map(Into::into).collect();
            url::parse_quorum(&urls)
        }

        /// Sets for how long a server of a `redis+quorum://` URL does not count after its restart: it may have
        /// forgotten locks that are still held. Must be at least the longest ttl in use; a longer ttl is refused
        /// with [`LockError::Invalid`]. Zero is for servers that forget nothing, with an append-only file
        /// and `appendfsync always`. Other URLs ignore it. Defaults to 60 s.
        #[cfg(feature = "quorum")]
        #[cfg_attr(docsrs, doc(cfg(feature = "quorum")))]
        pub fn quarantine(mut self, quarantine: Duration) -> Self {
            self.settings.quarantine = quarantine;
            self
        }

        /// Makes replicas, or the disk, acknowledge each lock before it counts: see [`Confirm`]. Only for the
        /// native dialect, and not for a quorum. A manager in memory ignores it. Defaults to none.
        pub fn confirm(mut self, confirm: Confirm) -> Self {
            self.settings.confirm = Some(confirm);
            self
        }

        /// Finds the servers of a URL, for `lockctl doctor`. Not an interface.
        ///
        /// # Errors
        /// The errors of [`connect`](Self::connect) about the URL, the settings and the certificates. That a server
        /// can't be reached isn't one.
        ///
        /// # Cancel safety
        /// Dropping the future leaves no connection behind.
        #[cfg(feature = "__doctor")]
        #[doc(hidden)]
        pub async fn servers(self, url: &str) -> Result<Servers, LockError> {
            self.settings.check()?;
            let Destination::Redis(deployment) = destination(url)? else {
                return Err(super::no_server("memory", "locks in memory have no server"));
            };
            check_runtime()?;
            let reporter = Arc::new(self.reporter());
            let notifications = Arc::new(Notifications::new(Arc::clone(&reporter)));
            find(*deployment, &self.settings, notifications, reporter).await
        }

        /// Sets the source of user and password: see [`CredentialProvider`]. The URL or the endpoint
        /// must have neither a user nor a password then. A manager in memory does not ask the
        /// provider. Defaults to none.
        pub fn credentials(mut self, provider: impl CredentialProvider) -> Self {
            self.settings.credentials = Some(Arc::new(provider));
            self
        }

        /// Sets the certificates of TLS: see [`Tls`]. The URL must begin with `rediss://`, or the endpoint
        /// must have [`tls`](Endpoint::tls). A manager in memory ignores them. Defaults to the
        /// authorities of the operating system and no client certificate.
        #[cfg(feature = "__tls")]
        #[cfg_attr(docsrs, doc(cfg(any(feature = "tls", feature = "tls-aws-lc"))))]
        pub fn tls(mut self, tls: Tls) -> Self {
            self.settings.tls = Some(tls);
            self
        }
    }
}
