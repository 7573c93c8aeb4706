//! What connections need of the settings and of the address: login, TLS, name, limits, and where events and
//! notifications go.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::{ProtocolVersion, RedisConnectionInfo};
use tokio::runtime::Handle;

use super::credentials::{CredentialSource, Issued};
use super::deployment::{Deployment, Login, NodeAddress, Protocol, Topology};
use super::dial::SharedTls;
use super::node::Node;
use crate::config::Settings;
use crate::error::texts::clocks_differ;
use crate::error::{BackendErrorKind, LockError};
use crate::store::{Boxed, Dialects, NotificationSink, StoreTraits};
use crate::telemetry::{ConnectionKind, Reporter};
use lock_protocol::codec::deadline::SharedDeadlines;
use lock_protocol::dialect::{CLOCK_TOLERANCE, InvalidDialectReason};
use lock_protocol::wire::tidy_label;

/// The name of the library that `CLIENT LIST` shows, in the form that Redis recommends.
const LIBRARY: &str = "lock-core(redis-rs)";

/// How far the fencing tokens of one configuration epoch lie ahead of those of the epoch before: a minute.
/// A primary that was replaced may give tokens for that long, less the difference of two clocks.
const LEAD_OF_AN_EPOCH_US: u64 = 60_000_000;
/// The last epoch that moves the tokens: two days of failovers, one a minute. A counter lives for as long as its lead, and
/// a wrong epoch must not put the counters of all clients beyond any time.
pub(super) const LAST_EPOCH: u64 = 48 * 60;

/// What the URL says about the servers. A server of another kind is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeploymentKind {
    Standalone,
    Sentinel,
    Cluster,
    Quorum,
}

impl DeploymentKind {
    pub(super) fn of(topology: &Topology) -> Self {
        match topology {
            Topology::Standalone(_) => Self::Standalone,
            Topology::Sentinel(_) => Self::Sentinel,
            Topology::Cluster(_) => Self::Cluster,
            Topology::Quorum(_) => Self::Quorum,
        }
    }
}

fn whole_micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// What all connections to the servers of a manager have in common. Each server of a quorum has one of its own.
pub(super) struct NodeConfig {
    /// Has no user and no password if there is a source of credentials.
    login: RedisConnectionInfo,
    /// The version of the protocol that the URL names. Without it, connections speak RESP2 where the server has no
    /// RESP3.
    pub(super) protocol: Option<Protocol>,
    pub(super) tls: Option<SharedTls>,
    pub(super) kind: DeploymentKind,
    /// The name of the connections, without their role.
    client_name: String,
    pub(super) credentials: Option<Arc<CredentialSource>>,
    pub(super) settings: Settings,
    /// What the locks of one dialect have to remember, whichever node has them.
    pub(super) deadlines: SharedDeadlines,
    pub(super) notifications: Arc<dyn NotificationSink>,
    pub(super) reporter: Arc<Reporter>,
    /// The runtime of the background worker, which begins after the first connections.
    pub(super) worker: OnceLock<Handle>,
    /// There has been a connection.
    was_reached: AtomicBool,
}

impl NodeConfig {
    /// Joins what the settings and the address say. The TLS client is the one for the files of this deployment.
    pub(super) fn new(
        deployment: &Deployment,
        kind: DeploymentKind,
        tls: Option<SharedTls>,
        settings: &Settings,
        notifications: &Arc<dyn NotificationSink>,
        reporter: &Arc<Reporter>,
    ) -> Result<Arc<Self>, LockError> {
        let login = &deployment.login;
        let mut settings = settings.clone();
        let provider = settings.credentials.take();
        settings.forget_secrets();
        if provider.is_some() && (login.user.is_some() || login.password.is_some()) {
            return Err(LockError::advised(
                BackendErrorKind::InvalidUrl,
                "two sources of credentials: the server's address has a user or a password, and \
                 `credentials` sets a provider",
                "remove one of them",
            ));
        }
        let timeout = settings.command_timeout;
        let credentials =
            provider.map(|provider| CredentialSource::new(provider, timeout, Arc::clone(reporter)));
        Ok(Arc::new(Self {
            login: connection_info(login),
            protocol: login.protocol,
            tls,
            kind,
            client_name: client_name(&settings, deployment),
            credentials: credentials.map(Arc::new),
            settings,
            deadlines: SharedDeadlines::default(),
            notifications: Arc::clone(notifications),
            reporter: Arc::clone(reporter),
            worker: OnceLock::new(),
            was_reached: AtomicBool::new(false),
        }))
    }

    /// Records the runtime of the background worker.
    pub(super) fn driven_by(&self, worker: &Handle) {
        self.worker.get_or_init(|| worker.clone());
    }

    /// Returns whether there has been a connection.
    pub(super) fn was_reached(&self) -> bool {
        self.was_reached.load(Ordering::Relaxed)
    }

    /// Records a connection. The first one shows whether the server's clock fits the dialect.
    pub(super) fn reached(&self, clock_difference: Duration) -> Result<(), LockError> {
        if self.was_reached() {
            return Ok(());
        }
        let is_single = matches!(
            self.kind,
            DeploymentKind::Standalone | DeploymentKind::Sentinel
        );
        let capabilities = self.settings.dialect.capabilities();
        if is_single
            && capabilities.needs_synchronized_clocks()
            && clock_difference > CLOCK_TOLERANCE
        {
            return Err(clocks_differ(&format!("{clock_difference:?}")));
        }
        self.was_reached.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Returns how long a command may take.
    pub(super) fn timeout(&self) -> Duration {
        self.settings.command_timeout
    }

    /// Returns what a store of these servers can do.
    pub(super) fn traits(&self) -> StoreTraits {
        let confirm = self.settings.confirm;
        StoreTraits {
            confirms_grants: confirm.is_some(),
            dialects: match confirm {
                Some(_) => Dialects::Some {
                    has: |dialect| dialect.scheme().is_none(),
                    others: InvalidDialectReason::Confirmed,
                },
                None => Dialects::All,
            },
            ..StoreTraits::SERVER
        }
    }

    /// Returns the login of a connection that opens now. Asks the provider, for at most `limit`.
    pub(super) async fn login(
        &self,
        limit: Duration,
    ) -> Result<(RedisConnectionInfo, Option<Arc<Issued>>), LockError> {
        let login = self.login.clone();
        let Some(source) = &self.credentials else {
            return Ok((login, None));
        };
        let issued = source.ask(limit).await?;
        let login = login
            .set_username(&issued.user)
            .set_password(&issued.password);
        Ok((login, Some(issued)))
    }

    /// Returns whether connections show a password.
    pub(super) fn has_login(&self) -> bool {
        self.credentials.is_some() || self.login.password().is_some()
    }

    /// Returns the user of connections. Without a password, a login names no user, and the server takes its default user.
    #[cfg(feature = "__doctor")]
    pub(super) fn user(&self) -> &str {
        let user = self.login.password().and(self.login.username());
        user.unwrap_or("default")
    }

    /// Returns how far the tokens of a server with this configuration epoch lie ahead of its clock, in
    /// microseconds.
    pub(super) fn lead_us(&self, epoch: u64) -> u64 {
        epoch
            .min(LAST_EPOCH)
            .saturating_mul(LEAD_OF_AN_EPOCH_US)
            .saturating_add(whole_micros(self.settings.fencing_lead))
    }

    /// Returns the address at which this client reaches a server, and records it for error texts.
    pub(super) fn reach(&self, node: &Node) -> Result<NodeAddress, LockError> {
        let map = self.settings.address_map.as_ref();
        let Some(map) = map.filter(|_| node.is_announced()) else {
            return Ok(node.address.clone());
        };
        let mut mapped = None;
        for announced in std::iter::once(&node.address).chain(&node.aliases) {
            mapped = announced.reached_by(map, &self.reporter)?;
            if mapped.is_some() {
                break;
            }
        }
        let mapped = mapped.filter(|mapped| *mapped != node.address);
        node.record_reached(mapped.as_ref());
        Ok(mapped.unwrap_or_else(|| node.address.clone()))
    }

    /// Reports a client certificate that expires soon, for as long as it is polled.
    pub(super) fn watch_client_certificate(&self) -> Boxed<'_, ()> {
        match &self.tls {
            #[cfg(feature = "__tls")]
            Some(tls) => Box::pin(tls.watch_client_certificate()),
            _ => Box::pin(std::future::ready(())),
        }
    }

    /// Returns the name of a connection, as `CLIENT SETNAME` takes it.
    pub(super) fn client_name(&self, kind: ConnectionKind) -> String {
        with_role(&self.client_name, kind)
    }
}

pub(super) fn connection_info(login: &Login) -> RedisConnectionInfo {
    let mut info = RedisConnectionInfo::default()
        .set_db(login.db)
        .set_protocol(ProtocolVersion::RESP3)
        .set_lib_name(LIBRARY, env!("CARGO_PKG_VERSION"));
    if let Some(user) = &login.user {
        info = info.set_username(user);
    }
    if let Some(password) = &login.password {
        info = info.set_password(password);
    }
    info
}

/// Returns the name of the connections that builder, URL or label give, in this order.
fn client_name(settings: &Settings, deployment: &Deployment) -> String {
    let name = match (&settings.client_name, &deployment.client_name) {
        (Some(name), _) => name.to_string(),
        (None, Some(name)) => name.clone(),
        (None, None) => format!("lock:{}", settings.label),
    };
    in_client_name(&name)
}

fn with_role(name: &str, kind: ConnectionKind) -> String {
    format!("{name}:{}", kind.as_str())
}

/// Replaces the characters that the server does not accept in the name of a connection.
fn in_client_name(name: &str) -> String {
    let visible = |letter: char| match letter {
        '!'..='~' => letter,
        _ => '_',
    };
    tidy_label(name).chars().map(visible).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::url::parse;

    #[test]
    fn connection_is_named_by_the_builder_the_url_or_the_label() {
        let plain = "redis://h";
        let named = "redis://h/1?client_name=my%20app";
        let unix = "unix:///s?db=1&client_name=x";
        for (url, set, name) in [
            (plain, None, "lock:web_7_:worker"),
            (named, None, "my_app:worker"),
            (unix, None, "x:worker"),
            (named, Some("set"), "set:worker"),
        ] {
            let settings = Settings {
                label: "web 7é".into(),
                client_name: set.map(Into::into),
                ..Settings::default()
            };
            let found = client_name(&settings, &parse(url).unwrap());
            assert_eq!(with_role(&found, ConnectionKind::Worker), name);
        }
    }
}
