//! The servers of a deployment, one by one, for `lockctl doctor`. Not an interface: `lockctl` has the version of this
//! crate.
//!
//! A store connects to the servers that it needs, and refuses those that are not fit for locks. `doctor` looks at all of
//! them, including replicas, which a failover makes primaries, and says why. So `find` reads an address as
//! `connect` does, and [`Server::open`] dials and logs in as a store does: with the same certificates,
//! the same address map, and the same step back to RESP2. It only leaves out the checks of a handshake, which are what
//! `doctor` explains.

use std::sync::Arc;
use std::time::SystemTime;

use super::connect::{read_in_time, tls_clients};
use super::connector::{Connector, Slots};
use super::deployment::{Deployment, NodeAddress, Topology as Named};
use super::link::Link;
use super::location::Location;
use super::node::Node;
use super::node_config::{DeploymentKind, NodeConfig};
use super::transport::{Subscribing, Transport};
use crate::config::Settings;
use crate::error::LockError;
use crate::redis::tls::Certificate;
use crate::store::NotificationSink;
use crate::telemetry::Reporter;
use lock_protocol::clock::{Clock, Deadline};
use lock_protocol::route::{HashSlot, channel_tag, slot_of};

mod connection;
mod discovery;

pub use connection::{AskError, Connection, Reply};
use discovery::{behind_sentinels, in_cluster};

/// How many connections a manager opens to a server: one for the first runtime, and one for its background worker.
const TO_A_SERVER: u64 = 2;
/// How many it opens to a Sentinel.
const TO_A_SENTINEL: u64 = 1;

/// The servers of a deployment.
pub struct Servers {
    /// How they belong together.
    pub topology: Topology,
    /// Each of them.
    pub servers: Vec<Server>,
    /// What could not be found out about them.
    pub unknown: Vec<String>,
    /// The certificate that clients show.
    pub client_certificate: Option<CertificateEnd>,
}

/// How servers belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One server.
    Single,
    /// A primary and its replicas, whose Sentinels know them by this name.
    Sentinel(String),
    /// A Redis Cluster.
    Cluster,
    /// Independent servers.
    Quorum,
}

/// What a server is in its deployment, as the URL or other servers say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The only server.
    Single,
    /// A primary, behind Sentinels or in a cluster.
    Primary,
    /// A replica, behind Sentinels or in a cluster.
    Replica,
    /// A Sentinel.
    Sentinel,
    /// A server of a quorum.
    Member,
    /// The URL names it, but the cluster's slot map doesn't, or isn't known.
    Unlisted,
}

/// When a certificate ends.
#[derive(Clone, Debug)]
pub struct CertificateEnd {
    /// The file that has it, or the address of the server.
    pub location: String,
    /// The end of its validity.
    pub ends: SystemTime,
    /// How long before its end the library reports it.
    pub notice: std::time::Duration,
}

impl CertificateEnd {
    fn new(certificate: &Certificate<'_>, location: String) -> Self {
        Self {
            location,
            ends: certificate.ends,
            notice: certificate.notice,
        }
    }
}

/// One server, and how to reach it.
pub struct Server {
    /// What it should be.
    pub part: Part,
    connector: Arc<Connector>,
    /// The slots that it has, the first and the last of each range; `None` outside of a cluster.
    slots: Option<Vec<(HashSlot, HashSlot)>>,
}

/// Finds the servers of a deployment. Each step takes the command timeout at most. What can't be found out of servers that don't reply is no
/// error.
pub(crate) async fn find(
    deployment: Deployment,
    settings: &Settings,
    notifications: Arc<dyn NotificationSink>,
    reporter: Arc<Reporter>,
) -> Result<Servers, LockError> {
    let deadline = Deadline::after(Clock::System, settings.command_timeout);
    let kind = DeploymentKind::of(&deployment.topology);
    let reading = tls_clients(deployment.servers(), settings, &reporter);
    let clients = read_in_time(deadline, reading).await?;
    let config = |deployment: &Deployment| {
        let of_files = |(files, _): &&(_, _)| Some(files) == deployment.tls.as_ref();
        let tls = clients.iter().find(of_files);
        let tls = tls.map(|(_, client)| Arc::clone(client));
        NodeConfig::new(deployment, kind, tls, settings, &notifications, &reporter)
    };
    let single = |deployment: &Deployment, address: &NodeAddress, part| {
        let node = Node::new(address.clone());
        Ok::<_, LockError>(Server::new(config(deployment)?, node, part))
    };
    let mut unknown = Vec::new();
    let (topology, servers) = match &deployment.topology {
        Named::Standalone(address) => {
            let server = single(&deployment, address, Part::Single)?;
            (Topology::Single, vec![server])
        }
        Named::Quorum(servers) => {
            let mut members = Vec::new();
            for server in servers {
                if let Named::Standalone(address) = &server.topology {
                    members.push(single(server, address, Part::Member)?);
                }
            }
            (Topology::Quorum, members)
        }
        Named::Sentinel(sentinels) => {
            let mut own = deployment.clone();
            own.login = sentinels.login.clone();
            own.tls = own.tls.filter(|_| sentinels.tls);
            let (servers, own) = (config(&deployment)?, config(&own)?);
            let found = behind_sentinels(&servers, &own, sentinels, &mut unknown).await?;
            (Topology::Sentinel(sentinels.service.clone()), found)
        }
        Named::Cluster(seeds) => {
            let found = in_cluster(&config(&deployment)?, seeds, &mut unknown).await?;
            (Topology::Cluster, found)
        }
    };
    let mut shown = clients
        .iter()
        .map(|(_, client)| client.client_certificate());
    let shown = shown.find_map(|shown| shown);
    Ok(Servers {
        topology,
        servers,
        unknown,
        client_certificate: shown.map(|(it, location)| CertificateEnd::new(&it, location)),
    })
}

impl Server {
    fn new(config: Arc<NodeConfig>, node: Node, part: Part) -> Self {
        let location = Location::Fixed(Arc::new(node));
        let connector = Connector::new(config, location, Slots::Settled, Vec::new());
        Self {
            part,
            connector: Arc::new(connector),
            slots: None,
        }
    }

    fn in_cluster(self, slots: Vec<(HashSlot, HashSlot)>) -> Self {
        Self {
            slots: Some(slots),
            ..self
        }
    }

    /// Returns the address that the URL has, or that others have announced.
    #[must_use]
    pub fn address(&self) -> String {
        self.connector.node().address.to_string()
    }

    /// Returns the address at which a connection has reached it, and the announced one if that is another.
    #[must_use]
    pub fn reached_at(&self) -> String {
        self.connector.node().text().to_string()
    }

    /// Returns how many connections to it a manager opens. A failover makes a replica the
    /// primary.
    #[must_use]
    pub fn connections(&self) -> u64 {
        match self.part {
            Part::Sentinel => TO_A_SENTINEL,
            _ => TO_A_SERVER,
        }
    }

    /// Returns the host; `None` for a Unix socket.
    #[must_use]
    pub fn host(&self) -> Option<String> {
        match &self.connector.node().address {
            NodeAddress::Tcp(host, _) => Some(host.clone()),
            NodeAddress::Unix(_) => None,
        }
    }

    /// Returns whether it is reached by TLS.
    #[must_use]
    pub fn has_tls(&self) -> bool {
        self.connector.config.tls.is_some()
    }

    /// Returns whether connections show a password.
    #[must_use]
    pub fn has_password(&self) -> bool {
        self.connector.config.has_login()
    }

    /// Returns the user of connections.
    #[must_use]
    pub fn user(&self) -> &str {
        self.connector.config.user()
    }

    /// Returns whether it belongs to a cluster.
    #[must_use]
    pub fn is_in_cluster(&self) -> bool {
        self.slots.is_some()
    }

    /// Returns whether it has the slot of a key. Outside of a cluster it has all keys.
    #[must_use]
    pub fn has_slot_of(&self, key: &str) -> bool {
        let slot = slot_of(key.as_bytes());
        let has = |slots: &Vec<(HashSlot, HashSlot)>| {
            slots
                .iter()
                .any(|(first, last)| (*first..=*last).contains(&slot))
        };
        self.slots.as_ref().is_none_or(has)
    }

    /// Returns a channel for messages about a key. In a cluster it lives where the key lives.
    #[must_use]
    pub fn channel(&self, name: &str, key: &str) -> String {
        if self.is_in_cluster() {
            format!("{name}{{{}}}", channel_tag(slot_of(key.as_bytes())))
        } else {
            name.to_owned()
        }
    }

    /// Connects and logs in, within the command timeout.
    ///
    /// # Errors
    /// [`LockError::Backend`] if the server can't be reached, or refuses the login.
    ///
    /// # Cancel safety
    /// Dropping the future closes what it has opened.
    pub async fn open(&self) -> Result<Connection, LockError> {
        let limit = self.connector.config.timeout();
        let logged_in = self.connector.log_in(limit).await?;
        let certificate = logged_in.stream.certificate();
        let certificate = certificate.map(|it| CertificateEnd::new(&it, self.address()));
        let how = if self.is_in_cluster() {
            Subscribing::Sharded
        } else {
            Subscribing::Classic
        };
        let reporter = &self.connector.config.reporter;
        let link = Link::unreported(self.connector.node(), reporter, limit);
        let transport = Transport::start(logged_in.stream, Arc::new(link));
        let mut connection = Connection::new(transport, how, limit);
        connection.certificate = certificate;
        connection.speaks_resp3 = logged_in.protocol.supports_resp3();
        connection.refusal_of_resp3 = logged_in.refused_resp3.map(|refused| refused.text());
        Ok(connection)
    }
}
