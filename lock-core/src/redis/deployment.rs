//! Where the lock servers are and how a client logs in, as a URL or an endpoint says it.
//!
//! The second of three stages: `Settings` has what builder, file and environment say, a `Deployment` what the address
//! says, and a `NodeConfig` what connections need of both.

use std::fmt;
use std::path::PathBuf;

use crate::config::address_map::AddressMap;
use crate::config::endpoint::{Endpoint, EndpointAddress};
use crate::error::{InvalidSetting, LockError};
use crate::telemetry::Reporter;

/// The servers of a manager, and how to reach them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Deployment {
    pub(crate) topology: Topology,
    /// The login to the servers that have the locks.
    pub(crate) login: Login,
    /// The servers are reached by TLS, with these files.
    pub(crate) tls: Option<TlsFiles>,
    /// The parameter `client_name`.
    pub(crate) client_name: Option<String>,
}

impl Deployment {
    /// Returns the deployments with a login of their own: the servers of a quorum, or this one.
    pub(super) fn servers(&self) -> &[Self] {
        match &self.topology {
            Topology::Quorum(servers) => servers,
            _ => std::slice::from_ref(self),
        }
    }
}

/// # Errors
/// [`LockError::Invalid`] for TLS over a Unix socket.
impl TryFrom<Endpoint> for Deployment {
    type Error = LockError;

    fn try_from(endpoint: Endpoint) -> Result<Self, LockError> {
        let address = match endpoint.address {
            EndpointAddress::Tcp(host, port) => NodeAddress::Tcp(host, port),
            EndpointAddress::Unix(path) if endpoint.tls => {
                return Err(LockError::Invalid(InvalidSetting::Manager {
                    setting: "tls",
                    value: path.display().to_string().into(),
                    advice: "use no TLS for a Unix socket, or the host and port of the server"
                        .into(),
                }));
            }
            EndpointAddress::Unix(path) => NodeAddress::Unix(path),
        };
        Ok(Self {
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
}

/// How the servers belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    /// One server.
    Standalone(NodeAddress),
    /// A primary and its replicas, which Sentinels watch.
    Sentinel(Sentinels),
    /// A Redis Cluster, of which these nodes are known.
    Cluster(Vec<NodeAddress>),
    /// Independent servers. Each has its own login, and is standalone: the URL's parser sees to that.
    Quorum(Vec<Deployment>),
}

/// The Sentinels of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sentinels {
    pub(crate) addresses: Vec<NodeAddress>,
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

/// What a URL says about TLS. The files are in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    /// The certificates of the authorities that sign the servers' certificates.
    pub(crate) ca: Option<PathBuf>,
    /// The certificate of the client, and its key.
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
    /// The name in the servers' certificates; `None` if each has its host there.
    pub(crate) server_name: Option<String>,
}

impl TlsFiles {
    #[cfg(feature = "__tls")]
    pub(crate) fn names_files(&self) -> bool {
        self.ca.is_some() || self.certificate.is_some() || self.key.is_some()
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::url::parse;

    #[test]
    fn endpoint_equals_its_url() {
        let tcp = Endpoint::tcp("h", 7000).db(2).user("u").password("p");
        let unix = Endpoint::unix("/s").password("p").db(1);
        for (endpoint, url) in [
            (tcp, "redis://u:p@h:7000/2"),
            (unix, "unix:///s?db=1&pass=p"),
        ] {
            assert_eq!(Deployment::try_from(endpoint).unwrap(), parse(url).unwrap());
        }
    }
}
