//! Nodes that announce addresses which only they can reach, as in containers.

use lock_core::{BackendErrorKind, LockManager};
use test_support::fixtures::SOON;
use test_support::{Failover, RedisCluster, RedisServer};
use tests::{backend_error_kind, one_attempt};
use topologies::connect;

use super::{KEY, NAME, acquired, other_primary};

/// The nodes announce host names that no resolver knows.
fn hidden() -> RedisCluster {
    RedisCluster::start_with(|at, options| {
        options
            .args(["--cluster-announce-hostname", &format!("node-{at}.invalid")])
            .args(["--cluster-preferred-endpoint-type", "hostname"])
    })
}

/// Returns the URL of one node.
fn one_seed(cluster: &RedisCluster) -> String {
    format!("redis+cluster://{}", cluster.nodes()[0].address())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announced_names_are_reached_through_the_address_map() {
    let cluster = hidden();
    let ports: Vec<_> = cluster.nodes().iter().map(RedisServer::port).collect();
    let map = move |host: &str, _port: u16| {
        let number = host.strip_prefix("node-")?.strip_suffix(".invalid")?;
        let port = ports[number.parse::<usize>().ok()?];
        Some(("127.0.0.1".to_owned(), port))
    };
    let builder = one_attempt(LockManager::builder()).command_timeout(SOON);
    let builder = builder.address_map(map);
    let locks = builder.connect(&one_seed(&cluster)).await.unwrap();
    let held = locks.lock(NAME).acquire().await.unwrap();
    // ASK, MOVED, and a slot map with another node.
    let to = other_primary(&cluster);
    cluster.begin_move(KEY, to);
    cluster.move_keys(&[KEY], to);
    held.renew().await.unwrap();
    cluster.end_move(KEY, to);
    held.renew().await.unwrap();
    cluster.failover(KEY, cluster.replica_of(to), Failover::Agreed);
    held.renew().await.unwrap();
    held.release().await.unwrap();
    acquired(&locks).await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn error_of_an_announced_address_names_the_address_map() {
    let cluster = hidden();
    let locks = connect(&one_seed(&cluster)).await;
    let refused = locks.lock(NAME).try_acquire().await.unwrap_err();
    let text = refused.to_string();
    let kind = backend_error_kind(Err::<(), _>(refused));
    let is_expected = matches!(
        kind,
        BackendErrorKind::Unreachable | BackendErrorKind::TimedOut
    );
    assert!(is_expected, "{text}");
    for part in [
        ".invalid:",
        "the cluster announced this address",
        "set `address_map`",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
