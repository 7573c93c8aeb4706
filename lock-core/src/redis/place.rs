//! Where the lock servers are and how a client logs in, as a URL or an endpoint says it.

use std::fmt;
use std::path::PathBuf;

use crate::config::address_map::AddressMap;
use crate::error::LockError;
use crate::telemetry::Reporter;

/// The servers of a manager, and how to reach them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) topology: Topology,
    /// The login to the servers that have the locks.
    pub(crate) login: Login,
    /// The servers are reached by TLS, with these files.
    pub(crate) tls: Option<TlsFiles>,
    /// The parameter `client_name`.
    pub(crate) client_name: Option<String>,
}

/// How the servers belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    /// One server.
    Standalone(NodeAddress),
    /// A primary and its replicas, which Sentinels watch.
    Sentinel(SentinelPlace),
    /// A Redis Cluster, of which these nodes are known.
    Cluster(Vec<NodeAddress>),
    /// Independent servers. Each has its own login, and is standalone.
    Quorum(Vec<Place>),
}

/// The Sentinels of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SentinelPlace {
    pub(crate) sentinels: Vec<NodeAddress>,
    pub(crate) service: String,
    /// The login to the Sentinels. Its database is 0.
    pub(crate) login: Login,
    /// The Sentinels are reached by TLS.
    pub(crate) tls: bool,
}

/// The address of one server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum NodeAddress {
    /// A host name, or an IP address without brackets.
    Tcp(String, u16),
    Unix(PathBuf),
}

impl NodeAddress {
    /// Returns the address to which a map leads from an announced one, if it does.
    pub(super) fn reached_by(
        &self,
        map: &AddressMap,
        reporter: &Reporter,
    ) -> Result<Option<Self>, LockError> {
        let Self::Tcp(host, port) = self else {
            return Ok(None);
        };
        let mapped = map.reach(host, *port, reporter)?;
        Ok(mapped.map(|(host, port)| Self::Tcp(host, port)))
    }
}

/// What a connection sends first.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) db: i64,
    /// The URL names the version of the protocol.
    pub(crate) protocol: Option<Protocol>,
}

/// The version of the protocol between client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Resp2,
    Resp3,
}

/// The files that a URL names for TLS, in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    /// The certificates of the authorities that sign the servers' certificates.
    pub(crate) ca: Option<PathBuf>,
    /// The certificate of the client, and its key.
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

/// Writes `host:port` with brackets around an IPv6 address, or the path of a socket.
impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Does not show the password.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login")
            .field("user", &self.user)
            .field("password", &self.password.as_ref().map(|_| "***"))
            .field("db", &self.db)
            .field("protocol", &self.protocol)
            .finish()
    }
}
