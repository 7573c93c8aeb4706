//! Makes the backend of a place, and connects once, so that a problem is reported now and not at the first
//! lock.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::RedisBackend;
use super::access::{self, Access, DeploymentKind};
use super::client::RedisClient;
use super::cluster::{ClusterBackend, ClusterNodes};
use super::confirmer::Confirmer;
use super::connection::Connection;
use super::connector::Connector;
use super::credentials::CredentialSource;
use super::dial::SharedTls;
use super::dialects::{Dialects, SharedDeadlines, check_clocks};
use super::native::NativeLocks;
use super::node::{Node, Whereabouts};
use super::place::{NodeAddress, Place, Topology};
use super::quorum::QuorumBackend;
use super::sentinel::SentinelWatch;
use super::{scripts, security, url};
use crate::backend::{Backend, NotificationSink};
use crate::config::ManagerSettings;
use crate::config::server::{Security, ServerPlace, SharedProvider};
use crate::error::{BackendErrorKind, LockError};
use crate::protocol::clock::{Clock, Deadline};
use crate::telemetry::Reporter;

/// Makes the backends of single servers. They share the login, the settings and the sinks.
pub(super) struct NodeMaker {
    access: Arc<Access>,
    settings: ManagerSettings,
    notifications: Arc<dyn NotificationSink>,
    reporter: Arc<Reporter>,
    deadlines: SharedDeadlines,
}

impl NodeMaker {
    /// Makes the backend of the server at an address. It has no connection yet.
    pub(super) fn make(&self, address: &NodeAddress) -> RedisBackend {
        self.at(
            &Whereabouts::Fixed(Arc::new(Node::new(address.clone()))),
            |it| it,
        )
    }

    /// As [`make`](Self::make), for keys that are on their way to the node.
    pub(super) fn make_asking(&self, address: &NodeAddress) -> RedisBackend {
        let whereabouts = Whereabouts::Fixed(Arc::new(Node::new(address.clone())));
        self.at(&whereabouts, Connector::asking)
    }

    fn at(&self, whereabouts: &Whereabouts, change: fn(Connector) -> Connector) -> RedisBackend {
        let settings = &self.settings;
        let is_sharded = self.access.kind == DeploymentKind::Cluster;
        let connector = |scripts| {
            let (access, reporter) = (Arc::clone(&self.access), Arc::clone(&self.reporter));
            let timeout = settings.command_timeout;
            let whereabouts = whereabouts.clone();
            change(Connector::new(
                access,
                whereabouts,
                timeout,
                scripts,
                reporter,
            ))
        };
        let mut scripts = scripts::of(settings.dialect, is_sharded);
        if self.access.kind == DeploymentKind::Quorum {
            scripts.push(&scripts::RAISE);
        }
        let client = Arc::new(RedisClient::new(
            connector(scripts).for_dialect(settings.dialect),
            settings,
            Arc::clone(&self.notifications),
            Arc::clone(&self.reporter),
        ));
        let confirmer = settings.confirm.map(|confirm| {
            let connector = connector(vec![&scripts::RENEW]);
            Confirmer::new(Arc::clone(&client), connector, confirm)
        });
        RedisBackend {
            confirmer,
            native: NativeLocks::new(Arc::clone(&client), settings),
            dialects: Dialects::new(
                Arc::clone(&client),
                connector(Vec::new()),
                settings,
                Arc::clone(&self.deadlines),
            ),
            client,
            primary_changed: Notify::new(),
        }
    }

    pub(super) fn confirms_grants(&self) -> bool {
        self.settings.confirm.is_some()
    }

    pub(super) fn credentials(&self) -> Option<Arc<CredentialSource>> {
        self.access.credentials.clone()
    }

    pub(super) fn has_tls(&self) -> bool {
        self.access.tls.is_some()
    }
}

/// Connects to the servers of a place.
pub(crate) async fn connect(
    place: ServerPlace,
    security: Security,
    provider: Option<SharedProvider>,
    settings: &ManagerSettings,
    notifications: Arc<dyn NotificationSink>,
    reporter: Arc<Reporter>,
) -> Result<Arc<dyn Backend>, LockError> {
    let deadline = Deadline::after(Clock::System, settings.command_timeout);
    let place = match place {
        ServerPlace::Url(url) => url::parse(&url)?,
        ServerPlace::Endpoint(endpoint) => access::place_of(endpoint)?,
        ServerPlace::Quorum(urls) => url::parse_quorum(&urls)?,
    };
    if let Topology::Quorum(places) = place.topology {
        if settings.confirm.is_some() {
            return Err(LockError::InvalidSetting {
                setting: "confirm",
                value: "at a quorum".into(),
                advice: "use no `confirm`: a majority of servers confirms each lock".into(),
            });
        }
        let tls = read_in_time(deadline, security::clients(&places, security)).await?;
        let maker = |place: &Place| {
            let tls = tls
                .iter()
                .find(|(files, _)| Some(files) == place.tls.as_ref());
            let tls = tls.map(|(_, tls)| SharedTls::clone(tls));
            let access = Access::new(place, tls, provider.clone(), settings, &reporter)?;
            Ok(NodeMaker {
                access: Arc::new(access.in_quorum()),
                settings: settings.clone(),
                notifications: Arc::clone(&notifications),
                reporter: Arc::clone(&reporter),
                deadlines: SharedDeadlines::default(),
            })
        };
        let servers = servers_of(&places, maker)?;
        let backend = QuorumBackend::connect(servers, settings, &reporter, deadline).await?;
        return Ok(Arc::new(backend));
    }
    let tls = read_in_time(deadline, security::client(&place, security)).await?;
    let access = Arc::new(Access::new(&place, tls, provider, settings, &reporter)?);
    let maker = NodeMaker {
        access: Arc::clone(&access),
        settings: settings.clone(),
        notifications,
        reporter: Arc::clone(&reporter),
        deadlines: SharedDeadlines::default(),
    };
    let backend = match place.topology {
        Topology::Standalone(address) => maker.make(&address),
        Topology::Sentinel(place) => {
            let tls = access.tls.clone().filter(|_| place.tls);
            let patience = settings.command_timeout;
            let begun = SentinelWatch::begin(place, tls, reporter, patience, deadline.left());
            let watch = begun.await?;
            maker.at(&Whereabouts::sentinel(watch)?, |it| it)
        }
        Topology::Cluster(seeds) => {
            let nodes = ClusterNodes::new(maker, seeds, reporter);
            let backend = ClusterBackend::begin(nodes, deadline.left()).await?;
            return Ok(Arc::new(backend));
        }
        Topology::Quorum(_) => return Err(nested()),
    };
    let connection = first(&backend.client, deadline).await?;
    backend.client.server_changed_at(&connection);
    if let Some(confirmer) = &backend.confirmer {
        confirmer.probe(deadline.left()).await?;
    }
    if settings.dialect.capabilities().needs_clocks {
        check_clocks(&connection)?;
    }
    Ok(Arc::new(backend))
}

/// Makes the backend of each server of a quorum.
fn servers_of(
    places: &[Place],
    maker: impl Fn(&Place) -> Result<NodeMaker, LockError>,
) -> Result<Vec<RedisBackend>, LockError> {
    let make = |place: &Place| match &place.topology {
        Topology::Standalone(address) => Ok(maker(place)?.make(address)),
        _ => Err(nested()),
    };
    places.iter().map(make).collect()
}

fn nested() -> LockError {
    LockError::advised(
        BackendErrorKind::InvalidUrl,
        "a server of the quorum is not a single server",
        "use redis+quorum:// with single servers",
    )
}

/// Opens the first connection. A Sentinel may name a replica that is not promoted yet.
async fn first(client: &RedisClient, deadline: Deadline) -> Result<Arc<Connection>, LockError> {
    /// Long enough for the next step of a failover.
    const PAUSE: Duration = Duration::from_millis(50);
    loop {
        let error = match client.pool.first(deadline.left()).await {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        let watch = client.pool.connector.whereabouts.watch();
        let Some(watch) = watch.filter(|_| error.is_retryable() && deadline.left() > PAUSE) else {
            return Err(error);
        };
        tokio::time::sleep(PAUSE).await;
        // The error of the primary says more than that of the Sentinels.
        let _known = watch.discover(deadline.left()).await;
    }
}

/// Bounds the reading of certificates, whose files may be on a network, or be pipes.
async fn read_in_time<T>(
    deadline: Deadline,
    reading: impl Future<Output = Result<T, LockError>>,
) -> Result<T, LockError> {
    let read = tokio::time::timeout(deadline.left(), reading).await;
    read.unwrap_or_else(|_elapsed| {
        Err(LockError::advised(
            BackendErrorKind::TimedOut,
            "the files of the certificates were not read in time",
            "name regular files on a local disk, or give the bytes to `Tls`",
        ))
    })
}
