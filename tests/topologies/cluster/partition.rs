//! A primary that its clients reach, and the other nodes do not.

use std::time::Duration;

use test_support::fixtures::SOON;
use test_support::{ClusterBus, RedisCluster, RedisServer, eventually};
use tests::{fencing_token, in_time};
use topologies::connect;

use super::{FAILOVER, KEY, NAME, acquired};

/// The node timeout is shorter.
const TTL: Duration = Duration::from_secs(3);

/// Returns a cluster, and the connections of the owner of [`KEY`] to the other nodes.
fn start() -> (RedisCluster, ClusterBus) {
    let bus = ClusterBus::new();
    let owner = usize::from(test_support::cluster::slot(KEY)) * 3 / 16_384;
    let cluster = RedisCluster::start_with(|number, options| {
        if number == owner {
            options.bus(&bus)
        } else {
            options
        }
    });
    assert_eq!(cluster.owner_of(KEY).port(), cluster.nodes()[owner].port());
    (cluster, bus)
}

/// Waits until the other nodes have promoted the replica, and the old owner serves no key.
fn wait_for_the_majority(cluster: &RedisCluster, old: &RedisServer, new: &RedisServer) {
    cluster.wait_for_owner(KEY, new);
    eventually(FAILOVER, || {
        let reply = old.cli(&["GET", KEY]);
        reply
            .error()
            .is_some_and(|line| line.starts_with("CLUSTERDOWN"))
    });
}

/// The replica had got the lock, so the holder goes on there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_keeps_its_lock_when_its_node_is_cut_off_from_the_others() {
    let (cluster, bus) = start();
    let (locks, others) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let (old, held) = (cluster.owner_of(KEY), acquired(&locks).await);
    let new = cluster.replica_of(old);
    bus.cut();
    wait_for_the_majority(&cluster, old, new);
    test_support::eventually_async(SOON, async || held.renew().await.is_ok()).await;
    assert_eq!(new.cli(&["EXISTS", KEY]).integer(), 1);
    assert!(acquired_or_held(&others).await.is_none());
    let token = fencing_token(&held);
    held.release().await.unwrap();
    let next = acquired(&others).await;
    assert!(fencing_token(&next) > token);
    bus.restore();
    cluster.wait_stable();
    next.release().await.unwrap();
}

/// Tries until a node that serves the slot replies.
async fn acquired_or_held(locks: &lock_core::LockManager) -> Option<lock_core::LockGuard> {
    let mut outcome = None;
    test_support::eventually_async(SOON, async || {
        outcome = locks.lock(NAME).try_acquire().await.ok();
        outcome.is_some()
    })
    .await;
    outcome.expect("the condition holds")
}

/// The replica lacks the lock, so another caller gets it there. The old owner has stopped to renew it by then, so the
/// holder learns of the loss within one lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_of_a_node_that_is_cut_off_is_granted_by_its_replica() {
    let (cluster, bus) = start();
    let (locks, others) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    let old = cluster.owner_of(KEY);
    let new = cluster.replica_of(old);
    cluster.cut_replication(old);
    let held = locks.lock(NAME).ttl(TTL).acquire().await.unwrap();
    bus.cut();
    // Before the node timeout, both the node and its holder go on.
    held.renew().await.unwrap();
    wait_for_the_majority(&cluster, old, new);
    let losing = tokio::spawn(async move {
        in_time(TTL, held.lost()).await;
        fencing_token(&held)
    });
    let next = acquired(&others).await;
    assert_eq!(new.cli(&["EXISTS", KEY]).integer(), 1);
    let token = losing.await.unwrap();
    assert!(fencing_token(&next) > token);
    bus.restore();
    cluster.restore_replication(old);
    cluster.wait_stable();
    next.renew().await.unwrap();
    next.release().await.unwrap();
    acquired(&locks).await.release().await.unwrap();
}
