//! Makes the store of a deployment. [`connect`] also connects once, so that a problem is reported now and not at the first
//! lock; [`connect_lazily`] leaves that to the background worker and to the first call.

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
use crate::error::{BackendErrorKind, LockError};
use crate::store::{NotificationSink, Store};
use crate::telemetry::Reporter;
use lock_protocol::clock::{Clock, Deadline};

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
        let tls = client_of(deployment, clients);
        NodeConfig::new(deployment, kind, tls, settings, &notifications, &reporter)
    };
    // In boxes, because each of these futures is large, and only one of them runs.
    match &deployment.topology {
        Topology::Standalone(address) => {
            let config = config(&deployment, &reading.await?)?;
            let store = RedisStore::at_address(&config, address);
            let connection = store.client.pool.first(deadline.left()).await?;
            Box::pin(checked(store, &connection, deadline)).await
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
        Topology::Quorum(_) if settings.confirm.is_some() => Err(confirm_at_a_quorum()),
        #[cfg(feature = "quorum")]
        Topology::Quorum(servers) => {
            let clients = reading.await?;
            let store = of_quorum(servers, |server| config(server, &clients))?;
            let store = QuorumStore::new(store, settings, &reporter)?;
            Ok(Arc::new(Box::pin(store.connect(deadline)).await?))
        }
        #[cfg(not(feature = "cluster"))]
        Topology::Cluster(_) => Err(needs_feature("a Redis Cluster", "cluster")),
        #[cfg(not(feature = "quorum"))]
        Topology::Quorum(_) => Err(needs_feature("a quorum of servers", "quorum")),
    }
}

/// Makes the store of a deployment. Checks all that [`connect`] checks without a server. Blocks while it reads
/// certificates, for at most the command timeout.
pub(crate) fn connect_lazily(
    deployment: &Deployment,
    settings: &Settings,
    notifications: &Arc<dyn NotificationSink>,
    reporter: &Arc<Reporter>,
) -> Result<Arc<dyn Store>, LockError> {
    let kind = DeploymentKind::of(&deployment.topology);
    let read = || read_tls(deployment.servers(), settings, reporter);
    let config = |deployment: &Deployment, clients: &[(TlsFiles, SharedTls)]| {
        let tls = client_of(deployment, clients);
        NodeConfig::new(deployment, kind, tls, settings, notifications, reporter)
    };
    Ok(match &deployment.topology {
        Topology::Standalone(address) => {
            let config = config(deployment, &read()?)?;
            Arc::new(RedisStore::at_address(&config, address))
        }
        Topology::Sentinel(sentinels) => {
            let config = config(deployment, &read()?)?;
            let location = Location::sentinels(SentinelWatch::new(sentinels.clone(), &config)?);
            Arc::new(RedisStore::new(&config, &location, Slots::Settled))
        }
        #[cfg(feature = "cluster")]
        Topology::Cluster(seeds) => {
            let config = config(deployment, &read()?)?;
            Arc::new(ClusterStore::lazy(ClusterNodes::new(config, seeds.clone())))
        }
        #[cfg(feature = "quorum")]
        Topology::Quorum(_) if settings.confirm.is_some() => return Err(confirm_at_a_quorum()),
        #[cfg(feature = "quorum")]
        Topology::Quorum(servers) => {
            let clients = read()?;
            let stores = of_quorum(servers, |server| config(server, &clients))?;
            Arc::new(QuorumStore::new(stores, settings, reporter)?)
        }
        #[cfg(not(feature = "cluster"))]
        Topology::Cluster(_) => return Err(needs_feature("a Redis Cluster", "cluster")),
        #[cfg(not(feature = "quorum"))]
        Topology::Quorum(_) => return Err(needs_feature("a quorum of servers", "quorum")),
    })
}

/// Returns the TLS client for the files of this deployment.
fn client_of(deployment: &Deployment, clients: &[(TlsFiles, SharedTls)]) -> Option<SharedTls> {
    let mut clients = clients.iter();
    let of_files = clients.find(|(files, _)| Some(files) == deployment.tls.as_ref());
    of_files.map(|(_, client)| SharedTls::clone(client))
}

/// Makes the stores of a quorum's servers.
#[cfg(feature = "quorum")]
fn of_quorum(
    servers: &[Deployment],
    config: impl Fn(&Deployment) -> Result<Arc<NodeConfig>, LockError>,
) -> Result<Vec<RedisStore>, LockError> {
    let store = |server: &Deployment| match &server.topology {
        Topology::Standalone(address) => Ok(RedisStore::at_address(&config(server)?, address)),
        _ => Err(LockError::advised(
            BackendErrorKind::InvalidUrl,
            "a server of the quorum is not a single server",
            "use redis+quorum:// with single servers",
        )),
    };
    servers.iter().map(store).collect()
}

#[cfg(feature = "quorum")]
fn confirm_at_a_quorum() -> LockError {
    LockError::Invalid(InvalidSetting::Manager {
        setting: "confirm",
        value: "at a quorum".into(),
        advice: "use no `confirm`: a majority of servers confirms each lock".into(),
    })
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
    let files = tls_files(servers, settings)?;
    if files.is_empty() {
        return Ok(Vec::new());
    }
    let tls = settings.tls.clone().unwrap_or_default();
    let reporter = Arc::clone(reporter);
    // Reading hundreds of certificates takes milliseconds.
    let reading = tokio::task::spawn_blocking(move || clients_of_files(files, &tls, &reporter));
    reading.await.map_err(|_ended| LockError::NoRuntime)?
}

/// As [`tls_clients`], without a runtime. Blocks for at most the command timeout.
#[cfg(feature = "__tls")]
fn read_tls(
    servers: &[Deployment],
    settings: &Settings,
    reporter: &Arc<Reporter>,
) -> Result<Vec<(TlsFiles, SharedTls)>, LockError> {
    let files = tls_files(servers, settings)?;
    if files.is_empty() {
        return Ok(Vec::new());
    }
    let (tls, reporter) = (
        settings.tls.clone().unwrap_or_default(),
        Arc::clone(reporter),
    );
    let (sender, read) = std::sync::mpsc::channel();
    let thread = std::thread::Builder::new().name("lock-certificates".into());
    let started = thread.spawn(move || {
        // The caller may have stopped waiting.
        let _received = sender.send(clients_of_files(files, &tls, &reporter));
    });
    started.map_err(|error| {
        let kind = BackendErrorKind::BackgroundWorker;
        LockError::caused(kind, "cannot start a thread that reads certificates", error)
    })?;
    let read = read.recv_timeout(settings.command_timeout);
    read.unwrap_or_else(|_elapsed| Err(not_read_in_time()))
}

/// Returns each set of files that these servers have, once.
#[cfg(feature = "__tls")]
fn tls_files(servers: &[Deployment], settings: &Settings) -> Result<Vec<TlsFiles>, LockError> {
    let mut all: Vec<TlsFiles> = Vec::new();
    for files in servers.iter().filter_map(|server| server.tls.as_ref()) {
        if !all.contains(files) {
            all.push(files.clone());
        }
    }
    if all.is_empty() && settings.tls.is_some() {
        return Err(LockError::advised(
            BackendErrorKind::InvalidUrl,
            "`tls` sets certificates, and the address of the server is one without TLS",
            "use rediss:// instead of redis://, or `tls` of the endpoint",
        ));
    }
    Ok(all)
}

/// Reads the certificates. Blocks for the time of reading files.
#[cfg(feature = "__tls")]
fn clients_of_files(
    files: Vec<TlsFiles>,
    tls: &crate::config::tls::Tls,
    reporter: &Arc<Reporter>,
) -> Result<Vec<(TlsFiles, SharedTls)>, LockError> {
    use super::tls::TlsClient;

    let client = |files: TlsFiles| {
        let client = TlsClient::new(tls.clone(), files.clone(), Arc::clone(reporter))?;
        Ok((files, Arc::new(client)))
    };
    files.into_iter().map(client).collect()
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

/// Without the feature, a URL cannot demand TLS.
#[cfg(not(feature = "__tls"))]
#[expect(clippy::unnecessary_wraps, reason = "with TLS it reads files")]
fn read_tls(
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
    let location = Location::sentinels(watch.await?);
    let store = RedisStore::new(config, &location, Slots::Settled);
    let connection = first_behind_sentinels(&store.client, deadline).await?;
    checked(store, &connection, deadline).await
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

/// Checks that the primary of the first connection confirms locks, if the settings need that.
async fn checked(
    store: RedisStore,
    connection: &Connection,
    deadline: Deadline,
) -> Result<Arc<dyn Store>, LockError> {
    store.client.server_changed_at(connection);
    if let Some(confirmer) = &store.confirmer {
        confirmer.probe(deadline.left()).await?;
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
    read.unwrap_or_else(|_elapsed| Err(not_read_in_time()))
}

fn not_read_in_time() -> LockError {
    LockError::advised(
        BackendErrorKind::TimedOut,
        "the certificates were not read in time",
        "name regular files on a local disk, give the bytes to `Tls`, or make its provider faster",
    )
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
