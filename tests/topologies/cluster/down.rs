//! Slots that no node serves.

use std::time::Duration;

use lock_core::error::BackendErrorKind;
use lock_core::{LockError, LockManager};
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

/// A list goes on behind the dead node and names it. Without any node, it fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_without_a_dead_node_names_it() {
    let cluster = RedisCluster::start_with(|_, options| {
        options.args(["--cluster-require-full-coverage", "no"])
    });
    let locks = connect(&cluster).await;
    let dead = other_primary(&cluster);
    cluster.detach(cluster.replica_of(dead));
    let mut of_dead = 0;
    let mut held = Vec::new();
    for at in 0..20 {
        let name = format!("n:{at}");
        if cluster.owner_of(&format!("lock:{name}")).port() == dead.port() {
            of_dead += 1;
        }
        held.push(locks.lock(name).ttl(SOON).acquire().await.unwrap());
    }
    assert!((1..20).contains(&of_dead), "{of_dead}");
    let page = locks.admin().list("*").await.unwrap();
    assert_eq!((page.locks.len(), page.missing.len()), (20, 0));
    dead.kill9();
    let page = locks.admin().list("*").await.unwrap();
    assert_eq!(page.locks.len(), 20 - of_dead);
    let missing = &page.missing[..];
    assert_eq!(missing.len(), 1, "{missing:?}");
    assert_eq!(missing[0].address, dead.address().to_string());
    assert!(missing[0].reason.contains("connect"), "{missing:?}");
    assert!(page.next.is_none());
    // Each page names a node once.
    let (mut next, mut missing, mut listed) = (None, 0, 0);
    loop {
        let page = locks.admin().list("*").limit(3).after(next).await.unwrap();
        listed += page.locks.len();
        missing += page.missing.len();
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    assert_eq!((listed, missing), (20 - of_dead, 1));
    for node in cluster.nodes() {
        if node.port() != dead.port() {
            node.kill9();
        }
    }
    let list = locks.admin().list("*").await;
    assert!(list.is_err_and(|error| error.is_retryable()));
}
