//! Makes the store of a place, and connects once, so that a problem is reported now and not at the first
//! lock.

use std::sync::Arc;
use std::time::Duration;

use super::access::{self, Access};
use super::client::RedisClient;
use super::connection::Connection;
use super::errors::more_telling;
use super::location::Location;
use super::maker::NodeMaker;
#[cfg(feature = "cluster")]
use super::place::NodeAddress;
use super::place::{Place, Topology};
use super::single::RedisStore;
use super::{security, url};
use crate::config::ManagerSettings;
use crate::config::server::{Security, ServerPlace, SharedProvider};
use crate::error::texts::clocks_differ;
use crate::error::{BackendErrorKind, LockError};
use crate::store::{NotificationSink, Store};
use crate::telemetry::Reporter;
use lock_protocol::clock::{Clock, Deadline};
use lock_protocol::codec::deadline::SharedDeadlines;
use lock_protocol::dialect::CLOCK_TOLERANCE;

/// What the stores of all topologies are made from.
struct Ingredients<'a> {
    security: Security,
    provider: Option<SharedProvider>,
    settings: &'a ManagerSettings,
    notifications: Arc<dyn NotificationSink>,
    reporter: Arc<Reporter>,
    deadline: Deadline,
}

impl Ingredients<'_> {
    fn maker(&self, access: Access) -> NodeMaker {
        NodeMaker {
            access: Arc::new(access),
            settings: self.settings.clone(),
            notifications: Arc::clone(&self.notifications),
            reporter: Arc::clone(&self.reporter),
            deadlines: SharedDeadlines::default(),
        }
    }

    /// Reads the certificates that the place names, and makes the stores of its servers.
    async fn maker_for(&self, place: &Place) -> Result<NodeMaker, LockError> {
        let reading = security::client(place, &self.security, &self.reporter);
        let tls = read_in_time(self.deadline, reading).await?;
        let provider = self.provider.clone();
        let access = Access::new(place, tls, provider, self.settings, &self.reporter)?;
        Ok(self.maker(access))
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
) -> Result<Arc<dyn Store>, LockError> {
    let deadline = Deadline::after(Clock::System, settings.command_timeout);
    let place = match place {
        ServerPlace::Url(url) => url::parse(&url)?,
        ServerPlace::Endpoint(endpoint) => access::place_of(endpoint)?,
        ServerPlace::Quorum(urls) => url::parse_quorum(&urls)?,
    };
    let ingredients = Ingredients {
        security,
        provider,
        settings,
        notifications,
        reporter,
        deadline,
    };
    // In boxes, because each of these futures is large, and only one of them runs.
    match &place.topology {
        Topology::Standalone(address) => {
            let store = ingredients.maker_for(&place).await?.make_single(address);
            let connection = store.client.pool.first(deadline.left()).await?;
            Box::pin(checked(store, &connection, settings, deadline)).await
        }
        Topology::Sentinel(sentinels) => {
            Box::pin(behind_sentinels(&place, sentinels, &ingredients)).await
        }
        #[cfg(feature = "cluster")]
        Topology::Cluster(seeds) => Box::pin(in_cluster(&place, seeds, ingredients)).await,
        #[cfg(feature = "quorum")]
        Topology::Quorum(places) => Box::pin(at_quorum(places, &ingredients)).await,
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

async fn behind_sentinels(
    place: &Place,
    sentinels: &super::place::SentinelPlace,
    ingredients: &Ingredients<'_>,
) -> Result<Arc<dyn Store>, LockError> {
    let maker = ingredients.maker_for(place).await?;
    let tls = maker.access.tls.clone().filter(|_| sentinels.tls);
    let (settings, deadline) = (ingredients.settings, ingredients.deadline);
    let watch = super::sentinel::SentinelWatch::begin(
        sentinels.clone(),
        tls,
        settings.address_map.clone(),
        Arc::clone(&ingredients.reporter),
        settings.command_timeout,
        deadline.left(),
    );
    let location = Location::sentinels(watch.await?)?;
    let store = maker.at(&location, |it| it);
    let connection = first_behind_sentinels(&store.client, deadline).await?;
    checked(store, &connection, settings, deadline).await
}

#[cfg(feature = "cluster")]
async fn in_cluster(
    place: &Place,
    seeds: &[NodeAddress],
    ingredients: Ingredients<'_>,
) -> Result<Arc<dyn Store>, LockError> {
    use super::cluster::{ClusterNodes, ClusterStore};

    let maker = ingredients.maker_for(place).await?;
    let nodes = ClusterNodes::new(maker, seeds.to_vec(), ingredients.reporter);
    let store = ClusterStore::begin(nodes, ingredients.deadline.left()).await?;
    Ok(Arc::new(store))
}

#[cfg(feature = "quorum")]
async fn at_quorum(
    places: &[Place],
    ingredients: &Ingredients<'_>,
) -> Result<Arc<dyn Store>, LockError> {
    let (settings, deadline) = (ingredients.settings, ingredients.deadline);
    if settings.confirm.is_some() {
        return Err(LockError::InvalidSetting {
            setting: "confirm",
            value: "at a quorum".into(),
            advice: "use no `confirm`: a majority of servers confirms each lock".into(),
        });
    }
    let reading = security::clients(places, &ingredients.security, &ingredients.reporter);
    let tls = read_in_time(deadline, reading).await?;
    let make = |place: &Place| {
        let Topology::Standalone(address) = &place.topology else {
            return Err(LockError::advised(
                BackendErrorKind::InvalidUrl,
                "a server of the quorum is not a single server",
                "use redis+quorum:// with single servers",
            ));
        };
        let of_place = |(files, _): &&(_, _)| Some(files) == place.tls.as_ref();
        let tls = tls.iter().find(of_place);
        let tls = tls.map(|(_, tls)| super::dial::SharedTls::clone(tls));
        let provider = ingredients.provider.clone();
        let access = Access::new(place, tls, provider, settings, &ingredients.reporter)?;
        Ok(ingredients.maker(access.in_quorum()).make_single(address))
    };
    let servers = places.iter().map(make).collect::<Result<_, LockError>>()?;
    let reporter = &ingredients.reporter;
    let store = super::quorum::QuorumStore::connect(servers, settings, reporter, deadline);
    Ok(Arc::new(store.await?))
}

/// Checks that the primary of the first connection has what the settings need.
async fn checked(
    store: RedisStore,
    connection: &Connection,
    settings: &ManagerSettings,
    deadline: Deadline,
) -> Result<Arc<dyn Store>, LockError> {
    store.client.server_changed_at(connection);
    if let Some(confirmer) = &store.confirmer {
        confirmer.probe(deadline.left()).await?;
    }
    if settings.dialect.capabilities().needs_clocks {
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

/// `.ci/run` runs it without the features.
#[cfg(all(test, not(all(feature = "cluster", feature = "quorum"))))]
mod tests {
    use crate::{BackendErrorKind, LockError, LockManager};

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
