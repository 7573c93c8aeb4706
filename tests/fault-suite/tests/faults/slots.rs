//! Slots that move. The random faults of a cluster hit these moments too rarely to rely on them.

use std::sync::Arc;

use lock_core::{LockGuard, LockManager};
use test_support::{RedisCluster, RedisServer};
use tests::one_attempt;
use tokio::task::JoinSet;

/// The locks of these names are in one slot.
const NAMES: [&str; 8] = [
    "{a}:0", "{a}:1", "{a}:2", "{a}:3", "{a}:4", "{a}:5", "{a}:6", "{a}:7",
];
const KEY: &str = "lock:{a}:0";

/// How often all locks are renewed side by side.
const TIMES: usize = 50;

async fn connect(cluster: &RedisCluster) -> LockManager {
    let url = cluster.url();
    let locks = one_attempt(LockManager::builder()).connect(&url).await;
    locks.expect("the nodes run")
}

/// Returns a primary that does not own the slot.
fn other_primary(cluster: &RedisCluster) -> &RedisServer {
    let owner = cluster.owner_of(KEY).port();
    let mut primaries = cluster.nodes()[..3].iter();
    let other = primaries.find(|node| node.port() != owner);
    other.expect("there are three primaries")
}

/// The release is the first command after the move, so the manager does not know of the move.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_follows_a_slot_that_moved() {
    let cluster = RedisCluster::start();
    let locks = connect(&cluster).await;
    for way in cluster.slot_moves() {
        let held = locks.lock(NAMES[0]).acquire().await.unwrap();
        let to = other_primary(&cluster);
        cluster.move_slot_by(*way, KEY, to);
        held.release().await.unwrap();
        assert_eq!(to.cli(&["EXISTS", KEY]).integer(), 0);
    }
}

/// The keys are at the new node of an open slot, where each command needs an `ASKING` just before it. All
/// commands share a connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_side_by_side_each_follow_their_own_asking() {
    let cluster = RedisCluster::start();
    let locks = connect(&cluster).await;
    let mut held = Vec::new();
    for name in NAMES {
        held.push(Arc::new(locks.lock(name).acquire().await.unwrap()));
    }
    let to = other_primary(&cluster);
    cluster.begin_move(KEY, to);
    let keys = NAMES.map(|name| format!("lock:{name}"));
    cluster.move_keys(&keys.each_ref().map(String::as_str), to);
    for _ in 0..TIMES {
        let mut renewals = JoinSet::new();
        for guard in &held {
            let guard: Arc<LockGuard> = Arc::clone(guard);
            renewals.spawn(async move { guard.renew().await });
        }
        while let Some(renewed) = renewals.join_next().await {
            renewed.unwrap().unwrap();
        }
    }
    let errors = to.cli(&["INFO", "errorstats"]);
    assert!(!errors.text().contains("errorstat_MOVED"), "{errors:?}");
    cluster.end_move(KEY, to);
}
