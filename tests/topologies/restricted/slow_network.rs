//! Managers connect over a network that is slow, and past servers that do not reply.

use std::time::{Duration, Instant};

use lock_core::{LockError, LockManager};
use test_support::{Proxy, RedisCluster, RedisServer, SentinelService};
use tests::one_attempt;

use super::NAME;

/// More than a question over an open connection may take is needed for the first connection.
const ROUND_TRIP: Duration = Duration::from_millis(180);
const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);

fn proxies<'a>(servers: impl IntoIterator<Item = &'a RedisServer>) -> Vec<Proxy> {
    servers.into_iter().map(Proxy::in_front_of).collect()
}

fn hosts(proxies: &[Proxy]) -> String {
    let hosts: Vec<_> = proxies.iter().map(|it| it.address().to_string()).collect();
    hosts.join(",")
}

async fn connect(url: &str) -> Result<LockManager, LockError> {
    let builder = one_attempt(LockManager::builder());
    builder.command_timeout(COMMAND_TIMEOUT).connect(url).await
}

/// Connects, uses a lock, and returns how long it took to connect.
async fn connects(url: &str) -> Duration {
    let began = Instant::now();
    let locks = connect(url).await.unwrap();
    let elapsed = began.elapsed();
    let held = locks.lock(NAME).acquire().await.unwrap();
    held.release().await.unwrap();
    elapsed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manager_connects_to_sentinels_that_are_far_away() {
    let service = SentinelService::start();
    let proxies = proxies(service.sentinels());
    for proxy in &proxies {
        proxy.delay_round_trip(ROUND_TRIP);
    }
    connects(&format!("redis+sentinel://{}/mymaster", hosts(&proxies))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manager_connects_to_a_cluster_that_is_far_away() {
    let cluster = RedisCluster::start();
    let proxies = proxies(&cluster.nodes()[..1]);
    proxies[0].delay_round_trip(ROUND_TRIP);
    connects(&format!("redis+cluster://{}", hosts(&proxies))).await;
}

/// The command timeout is for the servers that reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connect_does_not_wait_for_servers_that_do_not_reply() {
    let service = SentinelService::start();
    let sentinels = proxies(service.sentinels());
    let cluster = RedisCluster::start();
    let nodes = proxies(&cluster.nodes()[..3]);
    for silent in sentinels[..2].iter().chain(&nodes[..2]) {
        silent.black_hole();
    }
    for url in [
        format!("redis+sentinel://{}/mymaster", hosts(&sentinels)),
        format!("redis+cluster://{}", hosts(&nodes)),
    ] {
        let elapsed = connects(&url).await;
        assert!(elapsed < COMMAND_TIMEOUT / 2, "{elapsed:?}");
    }
}
