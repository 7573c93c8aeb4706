//! Makes the store of a deployment, and connects once, so that a problem is reported now and not at the first
//! lock.

use std::sync::Arc;
use std::time::Duration;

use super::client::RedisClient;
#[cfg(feature = "cluster")]
use super::cluster::{ClusterNodes, ClusterStore};
use super::connection::Connection;
use super::connector::Slots;
#[cfg(feature = "cluster")]
use super::deployment::NodeAddress;
use super::deployment::{Deployment, Sentinels, TlsFiles, Topology};
use super::dial::SharedTls;
use super::errors::more_telling;
use super::location::Location;
use super::node_config::{DeploymentKind, NodeConfig};
#[cfg(feature = "quorum")]
use super::quorum::QuorumStore;
use super::sentinel::SentinelWatch;
use super::single::RedisStore;
use crate::config::Settings;
#[cfg(feature = "quorum")]
use crate::error::InvalidSetting;
use crate::error::texts::clocks_differ;
use crate::error::{BackendErrorKind, LockError};
use crate::store::{NotificationSink, Store};
use crate::telemetry::Reporter;
use lock_protocol::clock::{Clock, Deadline};
use lock_protocol::dialect::CLOCK_TOLERANCE;

/// Connects to the servers of a deployment.
pub(crate) async fn connect(
    deployment: Deployment,
    settings: &Settings,
    notifications: Arc<dyn NotificationSink>,
    reporter: Arc<Reporter>,
) -> Result<Arc<dyn Store>, LockError> {
    let deadline = Deadline::after(Clock::System, settings.command_timeout);
    let kind = DeploymentKind::of(&deployment.topology);
    // Begins when it is awaited: what is refused is refused before any file is read.
    let reading = read_in_time(
        deadline,
        tls_clients(deployment.servers(), settings, &reporter),
    );
    let config = |deployment: &Deployment, clients: &[(TlsFiles, SharedTls)]| {
        let of_files = |(files, _): &&(_, _)| Some(files) == deployment.tls.as_ref();
        let tls = clients.iter().find(of_files);
        let tls = tls.map(|(_, client)| SharedTls::clone(client));
        NodeConfig::new(deployment, kind, tls, settings, &notifications, &reporter)
    };
    // In boxes, because each of these futures is large, and only one of them runs.
    match &deployment.topology {
        Topology::Standalone(address) => {
            let config = config(&deployment, &reading.await?)?;
            let store = RedisStore::at_address(&config, address);
            let connection = store.client.pool.first(deadline.left()).await?;
            Box::pin(checked(store, &connection, settings, deadline)).await
        }
        Topology::Sentinel(sentinels) => {
            let config = config(&deployment, &reading.await?)?;
            Box::pin(behind_sentinels(&config, sentinels, deadline)).await
        }
        #[cfg(feature = "cluster")]
        Topology::Cluster(seeds) => {
            let config = config(&deployment, &reading.await?)?;
            Box::pin(in_cluster(config, seeds, deadline)).await
        }
        #[cfg(feature = "quorum")]
        Topology::Quorum(_) if settings.confirm.is_some() => {
            Err(LockError::Invalid(InvalidSetting::Manager {
                setting: "confirm",
                value: "at a quorum".into(),
                advice: "use no `confirm`: a majority of servers confirms each lock".into(),
            }))
        }
        #[cfg(feature = "quorum")]
        Topology::Quorum(servers) => {
            let clients = reading.await?;
            let server = |server: &Deployment| match &server.topology {
                Topology::Standalone(address) => {
                    Ok(RedisStore::at_address(&config(server, &clients)?, address))
                }
                _ => Err(LockError::advised(
                    BackendErrorKind::InvalidUrl,
                    "a server of the quorum is not a single server",
                    "use redis+quorum:// with single servers",
                )),
            };
            let servers = servers
                .iter()
                .map(server)
                .collect::<Result<_, LockError>>()?;
            let connecting = QuorumStore::connect(servers, settings, &reporter, deadline);
            Ok(Arc::new(Box::pin(connecting).await?))
        }
        #[cfg(not(feature = "cluster"))]
        Topology::Cluster(_) => Err(needs_feature("a Redis Cluster", "cluster")),
        #[cfg(not(feature = "quorum"))]
        Topology::Quorum(_) => Err(needs_feature("a quorum of servers", "quorum")),
    }
}

/// Returns the error of a URL whose topology is not built in.
#[cfg(not(all(feature = "cluster", feature = "quorum")))]
fn needs_feature(topology: &str, feature: &str) -> LockError {
    LockError::advised(
        BackendErrorKind::InvalidUrl,
        format!("{topology} in the lock URL: this needs the feature `{feature}` of lock-core"),
        "enable it in Cargo.toml",
    )
}

/// Returns a TLS client for each set of files that these servers have.
#[cfg(feature = "__tls")]
pub(super) async fn tls_clients(
    servers: &[Deployment],
    settings: &Settings,
    reporter: &Arc<Reporter>,
) -> Result<Vec<(TlsFiles, SharedTls)>, LockError> {
    use super::tls::TlsClient;

    let mut clients: Vec<(TlsFiles, SharedTls)> = Vec::new();
    for files in servers.iter().filter_map(|server| server.tls.as_ref()) {
        if clients.iter().any(|(known, _)| known == files) {
            continue;
        }
        let tls = settings.tls.clone().unwrap_or_default();
        let (read, reporter) = (files.clone(), Arc::clone(reporter));
        // Reading hundreds of certificates takes milliseconds.
        let made = tokio::task::spawn_blocking(move || TlsClient::new(tls, read, reporter)).await;
        let made = made.map_err(|_ended| LockError::NoRuntime)?;
        clients.push((files.clone(), Arc::new(made?)));
    }
    if clients.is_empty() && settings.tls.is_some() {
        return Err(LockError::advised(
            BackendErrorKind::InvalidUrl,
            "`tls` sets certificates, and the address of the server is one without TLS",
            "use rediss:// instead of redis://, or `tls` of the endpoint",
        ));
    }
    Ok(clients)
}

/// Without the feature, a URL cannot demand TLS.
#[cfg(not(feature = "__tls"))]
#[expect(clippy::unused_async, reason = "with TLS it waits for files")]
pub(super) async fn tls_clients(
    _servers: &[Deployment],
    _settings: &Settings,
    _reporter: &Arc<Reporter>,
) -> Result<Vec<(TlsFiles, SharedTls)>, LockError> {
    Ok(Vec::new())
}

async fn behind_sentinels(
    config: &Arc<NodeConfig>,
    sentinels: &Sentinels,
    deadline: Deadline,
) -> Result<Arc<dyn Store>, LockError> {
    let watch = SentinelWatch::begin(sentinels.clone(), config, deadline.left());
    let location = Location::sentinels(watch.await?)?;
    let store = RedisStore::new(config, &location, Slots::Settled);
    let connection = first_behind_sentinels(&store.client, deadline).await?;
    checked(store, &connection, &config.settings, deadline).await
}

#[cfg(feature = "cluster")]
async fn in_cluster(
    config: Arc<NodeConfig>,
    seeds: &[NodeAddress],
    deadline: Deadline,
) -> Result<Arc<dyn Store>, LockError> {
    let nodes = ClusterNodes::new(config, seeds.to_vec());
    let store = ClusterStore::begin(nodes, deadline.left()).await?;
    Ok(Arc::new(store))
}

/// Checks that the primary of the first connection has what the settings need.
async fn checked(
    store: RedisStore,
    connection: &Connection,
    settings: &Settings,
    deadline: Deadline,
) -> Result<Arc<dyn Store>, LockError> {
    store.client.server_changed_at(connection);
    if let Some(confirmer) = &store.confirmer {
        confirmer.probe(deadline.left()).await?;
    }
    if settings.dialect.capabilities().needs_synchronized_clocks() {
        let difference = connection.clock_difference;
        if difference > CLOCK_TOLERANCE {
            return Err(clocks_differ(&format!("{difference:?}")));
        }
    }
    Ok(Arc::new(store))
}

/// Opens the first connection. A Sentinel may name a replica that is not promoted yet.
async fn first_behind_sentinels(
    client: &RedisClient,
    deadline: Deadline,
) -> Result<Arc<Connection>, LockError> {
    /// Long enough for the next step of a failover.
    const PAUSE: Duration = Duration::from_millis(50);
    let mut earlier = None;
    loop {
        let error = match client.pool.first(deadline.left()).await {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        let error = more_telling(earlier.take(), error);
        let watch = client.pool.connector.location.watch();
        let Some(watch) = watch.filter(|_| error.is_retryable() && deadline.left() > PAUSE) else {
            return Err(error);
        };
        earlier = Some(error);
        tokio::time::sleep(PAUSE).await;
        // The error of the primary says more than that of the Sentinels.
        let _known = watch.discover(deadline.left()).await;
    }
}

/// Bounds the reading of certificates, whose files may be on a network, or be pipes.
pub(super) async fn read_in_time<T>(
    deadline: Deadline,
    reading: impl Future<Output = Result<T, LockError>>,
) -> Result<T, LockError> {
    let read = tokio::time::timeout(deadline.left(), reading).await;
    read.unwrap_or_else(|_elapsed| {
        Err(LockError::advised(
            BackendErrorKind::TimedOut,
            "the certificates were not read in time",
            "name regular files on a local disk, give the bytes to `Tls`, or make its provider faster",
        ))
    })
}

/// `.ci/run` runs it without the features.
#[cfg(all(test, not(all(feature = "cluster", feature = "quorum"))))]
mod tests {
    use crate::error::BackendErrorKind;
    use crate::{LockError, LockManager};

    #[tokio::test]
    async fn url_of_a_topology_that_is_not_built_in_names_the_feature() {
        let (cluster, quorum) = (cfg!(feature = "cluster"), cfg!(feature = "quorum"));
        for (url, feature, is_enabled) in [
            ("redis+cluster://h", "cluster", cluster),
            ("redis-cluster://h", "cluster", cluster),
            ("redis+quorum://a,b,c", "quorum", quorum),
        ] {
            if is_enabled {
                continue;
            }
            let error = LockManager::connect(url).await.expect_err("is refused");
            let LockError::Backend(backend) = &error else {
                panic!("{error:?}");
            };
            assert_eq!(backend.kind(), BackendErrorKind::InvalidUrl);
            let text = error.to_string();
            assert!(
                text.contains(&format!("needs the feature `{feature}`")),
                "{text}"
            );
            assert!(text.contains("enable it in Cargo.toml"), "{text}");
        }
    }
}
