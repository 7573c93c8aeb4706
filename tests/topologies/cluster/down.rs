//! Slots that no node serves.

use std::time::Duration;

use lock_core::{BackendErrorKind, LockError, LockManager};
use test_support::fixtures::SOON;
use test_support::{RedisCluster, cluster::slot, eventually, eventually_async};
use tests::{backend_error_kind, in_time, one_attempt};

use super::{KEY, NAME, acquired, other_primary};

const LIMIT: Duration = Duration::from_secs(1);

async fn connect(cluster: &RedisCluster) -> LockManager {
    let builder = one_attempt(LockManager::builder()).command_timeout(LIMIT);
    builder.connect(&cluster.url()).await.unwrap()
}

/// An attempt fails within its limit, and a wait at its end, both as the slot is down.
async fn assert_down(locks: &LockManager) {
    let attempt = in_time(LIMIT, locks.lock(NAME).try_acquire()).await;
    assert!(attempt.as_ref().is_err_and(LockError::is_retryable));
    assert_eq!(backend_error_kind(attempt), BackendErrorKind::ClusterDown);
    let wait = 2 * LIMIT;
    let waited = in_time(wait, locks.lock(NAME).wait(wait).acquire()).await;
    assert_eq!(backend_error_kind(waited), BackendErrorKind::ClusterDown);
}

/// Another primary has died, and has no replica. So the cluster does not cover all slots, and serves none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_without_a_primary_is_down_until_the_node_is_back() {
    let cluster = RedisCluster::start();
    let locks = connect(&cluster).await;
    let dead = other_primary(&cluster);
    cluster.detach(cluster.replica_of(dead));
    let kept = format!("{{{KEY}}}:kept");
    let held = locks.lock(kept).ttl(SOON).acquire().await.unwrap();
    dead.kill9();
    let owner = cluster.owner_of(KEY);
    eventually(SOON, || owner.cli(&["GET", KEY]).error().is_some());
    let names = (0..).map(|at| format!("n:{at}"));
    let of_dead = |name: &String| cluster.owner_of(&format!("lock:{name}")).port() == dead.port();
    let name = names.into_iter().find(of_dead).expect("it owns slots");
    let attempt = in_time(LIMIT, locks.lock(name).try_acquire()).await;
    assert!(attempt.is_err_and(|error| error.is_retryable()));
    assert_down(&locks).await;
    dead.restart();
    acquired(&locks).await.release().await.unwrap();
    // No node forgot it, and its lease goes on.
    eventually_async(SOON, async || held.renew().await.is_ok()).await;
    held.release().await.unwrap();
}

/// No node has the slot, and the cluster goes on with the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_without_an_owner_is_down_until_it_has_one() {
    let cluster = RedisCluster::start_with(|_, options| {
        options.args(["--cluster-require-full-coverage", "no"])
    });
    let locks = connect(&cluster).await;
    let owner = cluster.owner_of(KEY);
    let slot = slot(KEY).to_string();
    for node in cluster.nodes() {
        assert_eq!(node.cli(&["CLUSTER", "DELSLOTS", &slot]).error(), None);
    }
    assert_down(&locks).await;
    let elsewhere = locks.lock("elsewhere").acquire().await.unwrap();
    elsewhere.release().await.unwrap();
    assert_eq!(owner.cli(&["CLUSTER", "ADDSLOTS", &slot]).error(), None);
    acquired(&locks).await.release().await.unwrap();
}
