//! How connections log in, whether they use TLS, and the name under which the server shows them.

use std::sync::Arc;
use std::time::Duration;

use redis::{ProtocolVersion, RedisConnectionInfo};

use super::credentials::{CredentialSource, Issued};
use super::dial::SharedTls;
use super::node::Node;
use super::place::{Login, NodeAddress, Place, Protocol, Topology};
use crate::config::ManagerSettings;
use crate::config::address_map::AddressMap;
use crate::config::endpoint::{Endpoint, EndpointAddress};
use crate::config::server::SharedProvider;
use crate::error::{BackendErrorKind, LockError};
use crate::store::WORKER_THREAD;
use crate::telemetry::{ConnectionKind, Reporter};
use lock_protocol::wire::tidy_label;

/// The name of the library that `CLIENT LIST` shows, in the form that Redis recommends.
const LIBRARY: &str = "lock-core(redis-rs)";

/// How far the fencing tokens of one configuration epoch lie ahead of those of the epoch before: a minute.
/// A primary that was replaced may give tokens for that long, less the difference of two clocks.
const LEAD_OF_AN_EPOCH_US: u64 = 60_000_000;

/// What the URL says about the servers. A server of another kind is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeploymentKind {
    Standalone,
    Sentinel,
    Cluster,
    Quorum,
}

impl DeploymentKind {
    fn of(topology: &Topology) -> Self {
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

/// What all connections of a manager have in common.
pub(super) struct Access {
    /// Has no user and no password if there is a source of credentials.
    login: RedisConnectionInfo,
    /// The version of the protocol that the URL names. Without it, connections speak RESP2 where the server has no
    /// RESP3.
    pub(super) protocol: Option<Protocol>,
    pub(super) tls: Option<SharedTls>,
    pub(super) kind: DeploymentKind,
    /// Added to the floor of all fencing tokens, in microseconds.
    fencing_lead_us: u64,
    /// The name of the connections, without their role.
    name: String,
    pub(super) credentials: Option<Arc<CredentialSource>>,
    /// Where this client reaches the addresses that servers announce.
    address_map: Option<AddressMap>,
}

/// Returns the kind of a connection for lock commands that opens on this thread.
pub(super) fn kind_of_this_thread() -> ConnectionKind {
    if std::thread::current().name() == Some(WORKER_THREAD) {
        ConnectionKind::Worker
    } else {
        ConnectionKind::Command
    }
}

impl Access {
    pub(super) fn new(
        place: &Place,
        tls: Option<SharedTls>,
        provider: Option<SharedProvider>,
        settings: &ManagerSettings,
        reporter: &Arc<Reporter>,
    ) -> Result<Self, LockError> {
        let login = &place.login;
        if provider.is_some() && (login.user.is_some() || login.password.is_some()) {
            return Err(LockError::advised(
                BackendErrorKind::InvalidUrl,
                "two sources of credentials: the server's address has a user or a password, and \
                 `credentials` sets a provider",
                "remove one of them",
            ));
        }
        let name = match (&settings.client_name, &place.client_name) {
            (Some(name), _) => name.to_string(),
            (None, Some(name)) => name.clone(),
            (None, None) => format!("lock:{}", settings.label),
        };
        let timeout = settings.command_timeout;
        let credentials =
            provider.map(|provider| CredentialSource::new(provider, timeout, Arc::clone(reporter)));
        Ok(Self {
            protocol: login.protocol,
            login: connection_info(login),
            tls,
            kind: DeploymentKind::of(&place.topology),
            fencing_lead_us: whole_micros(settings.fencing_lead),
            name: in_client_name(&name),
            credentials: credentials.map(Arc::new),
            address_map: settings.address_map.clone(),
        })
    }

    /// Makes this the access to one of the servers of a quorum.
    pub(super) fn in_quorum(mut self) -> Self {
        self.kind = DeploymentKind::Quorum;
        self
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

    /// Returns how far the tokens of a server with this configuration epoch lie ahead of its clock, in
    /// microseconds.
    pub(super) fn lead_us(&self, epoch: u64) -> u64 {
        epoch
            .saturating_mul(LEAD_OF_AN_EPOCH_US)
            .saturating_add(self.fencing_lead_us)
    }

    /// Returns the address at which this client reaches a server, and records it for error texts.
    pub(super) fn reach(&self, node: &Node, reporter: &Reporter) -> Result<NodeAddress, LockError> {
        let Some(map) = self.address_map.as_ref().filter(|_| node.is_announced()) else {
            return Ok(node.address.clone());
        };
        let mut mapped = None;
        for announced in std::iter::once(&node.address).chain(&node.aliases) {
            mapped = announced.reached_by(map, reporter)?;
            if mapped.is_some() {
                break;
            }
        }
        let mapped = mapped.filter(|mapped| *mapped != node.address);
        node.record_reached(mapped.as_ref());
        Ok(mapped.unwrap_or_else(|| node.address.clone()))
    }

    /// Returns the name of a connection, as `CLIENT SETNAME` takes it.
    pub(super) fn client_name(&self, kind: ConnectionKind) -> String {
        format!("{}:{}", self.name, kind.as_str())
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

/// Returns the place of an endpoint.
pub(super) fn place_of(endpoint: Endpoint) -> Result<Place, LockError> {
    let address = match endpoint.address {
        EndpointAddress::Tcp(host, port) => NodeAddress::Tcp(host, port),
        EndpointAddress::Unix(path) if endpoint.tls => {
            return Err(LockError::InvalidSetting {
                setting: "use_tls",
                value: path.display().to_string().into(),
                advice: "use no TLS for a Unix socket, or the host and port of the server".into(),
            });
        }
        EndpointAddress::Unix(path) => NodeAddress::Unix(path),
    };
    Ok(Place {
        topology: Topology::Standalone(address),
        login: Login {
            user: endpoint.user,
            password: endpoint.password,
            db: endpoint.db,
            protocol: None,
        },
        tls: endpoint.tls.then(Default::default),
        client_name: None,
    })
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

    fn access(url: &str, change: fn(&mut ManagerSettings)) -> Access {
        let mut settings = ManagerSettings {
            label: "web 7é".into(),
            ..ManagerSettings::default()
        };
        change(&mut settings);
        let place = parse(url).unwrap();
        Access::new(&place, None, None, &settings, &Arc::default()).unwrap()
    }

    #[test]
    fn name_of_a_connection_is_that_of_the_builder_the_url_or_the_label() {
        let plain = "redis://h";
        let named = "redis://h/1?client_name=my%20app";
        let unix = "unix:///s?db=1&client_name=x";
        let set = |settings: &mut ManagerSettings| settings.client_name = Some("set".into());
        let role = ConnectionKind::Pubsub;
        for (url, change, name) in [
            (plain, (|_| {}) as fn(&mut _), "lock:web_7_:pubsub"),
            (named, |_| {}, "my_app:pubsub"),
            (unix, |_| {}, "x:pubsub"),
            (named, set, "set:pubsub"),
        ] {
            assert_eq!(access(url, change).client_name(role), name);
        }
    }

    #[test]
    fn endpoint_equals_its_url() {
        let tcp = Endpoint::tcp("h", 7000).db(2).user("u").password("p");
        let unix = Endpoint::unix("/s").password("p").db(1);
        for (endpoint, url) in [
            (tcp, "redis://u:p@h:7000/2"),
            (unix, "unix:///s?db=1&pass=p"),
        ] {
            assert_eq!(place_of(endpoint).unwrap(), parse(url).unwrap());
        }
    }
}
