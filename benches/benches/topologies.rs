//! Measures what it costs that a lock outlives a server, and that it is encrypted: an uncontended acquire and
//! release, divided by the raw pair at one server without TLS: `cargo bench -p benches --bench topologies`
//!
//! - `one_ratio`: one server, as `overhead.pair_ratio`, for comparison.
//! - `tls_ratio`: one server over TLS.
//! - `confirm_ratio`: a primary with a replica that acknowledges each grant (`WAIT 1`).
//! - `cluster_ratio`: a Redis Cluster.
//! - `quorum_3_ratio`, `quorum_5_ratio`: a majority of independent servers, with fencing tokens.
//! - `quorum_3_plain_ratio`: the same without tokens, in the dialect of redsync.
//!
//! All servers and the client share one machine, so all commands of a quorum take turns on its cores. Between
//! machines the ratio of a quorum is nearer to its round trips: three for the native lock, against two.

use std::time::Duration;

use benches::blocks::{alternate, block};
use benches::figures::report;
use benches::raw::RawPair;
use benches::{is_short, pairs};
use lock_core::config::{Confirm, Tls};
use lock_core::dialect::{Dialect, ReleaseMethod};
use lock_core::{LockManager, LockManagerBuilder};
use test_support::fixtures::{SOON, current_thread_runtime};
use test_support::{Authority, RedisCluster, RedisServer, eventually_async};

const ROUNDS: usize = 100;
const SHORT_ROUNDS: usize = 20;

const KEY: &str = "bench";

fn main() {
    current_thread_runtime().block_on(measure());
}

async fn measure() {
    let server = RedisServer::start();
    let mut raw = RawPair::connect(&server.url()).await;
    let one = manager(LockManager::builder(), &server.url()).await;
    compare("one", &mut raw, &one).await;

    let authority = Authority::new();
    let options = RedisServer::options().tls(&authority, &authority.server(), false);
    let secured = options.start();
    let ca = std::fs::read(authority.ca()).expect("the authority has a certificate");
    let builder = LockManager::builder().tls(Tls::new().ca_pem(ca));
    let tls = manager(builder, &secured.tls_url()).await;
    compare("tls", &mut raw, &tls).await;
    drop(secured);

    let (primary, replica) = (RedisServer::start(), RedisServer::start());
    replica.cli(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    let confirm = Confirm::replicas(1).within(Duration::from_secs(5));
    let builder = LockManager::builder().confirm(confirm);
    let confirmed = manager(builder, &primary.url()).await;
    compare("confirm", &mut raw, &confirmed).await;
    drop((primary, replica));

    let cluster = RedisCluster::start();
    let in_cluster = manager(LockManager::builder(), &cluster.url()).await;
    compare("cluster", &mut raw, &in_cluster).await;
    drop(cluster);

    let servers = [(); 5].map(|()| RedisServer::start());
    for (figure, servers, dialect) in [
        ("quorum_3", &servers[..3], Dialect::Native),
        ("quorum_5", &servers[..], Dialect::Native),
        ("quorum_3_plain", &servers[..3], PLAIN),
    ] {
        let builder = LockManager::builder().quarantine(Duration::ZERO);
        let hosts = servers.iter().map(|it| it.address().to_string());
        let url = format!("redis+quorum://{}", hosts.collect::<Vec<_>>().join(","));
        let quorum = manager(builder.dialect(dialect), &url).await;
        compare(figure, &mut raw, &quorum).await;
    }
}

const PLAIN: Dialect = Dialect::SetNxPx {
    release: ReleaseMethod::Script,
};

/// Connects, and waits until the deployment grants locks.
async fn manager(builder: LockManagerBuilder, url: &str) -> LockManager {
    let locks = pairs::connect_to(builder, url).await;
    eventually_async(SOON, async || match locks.lock(KEY).try_acquire().await {
        Ok(Some(held)) => held.release().await.is_ok(),
        _ => false,
    })
    .await;
    locks
}

async fn compare(figure: &str, raw: &mut RawPair, locks: &LockManager) {
    let rounds = if is_short() { SHORT_ROUNDS } else { ROUNDS };
    let raw_block = async || block(async || raw.run("lock:raw").await).await;
    let guard = async || block(async || pairs::guard(locks, KEY, pairs::WAIT).await).await;
    let series = alternate(rounds, raw_block, guard).await;
    report(&format!("topologies.{figure}_ratio"), series.ratio(), "x");
    report(
        &format!("topologies.{figure}_pair"),
        series.compared(),
        "us",
    );
}
