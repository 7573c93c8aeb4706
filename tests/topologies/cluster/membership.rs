//! Nodes that join and leave.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use test_support::fixtures::SOON;
use test_support::{RedisCluster, eventually_async};
use topologies::connect;

use super::{FAILOVER, KEY, NAME, acquired, other_primary};

/// The manager learns of the new nodes from those that it knows, and works while they change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_nodes_of_the_url_may_be_replaced() {
    let mut cluster = RedisCluster::start();
    let locks = connect(&cluster.url()).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    // Names of all primaries.
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let (stop, rounds) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let (stopped, done, user) = (Arc::clone(&stop), Arc::clone(&rounds), locks.clone());
    let working = tokio::spawn(async move {
        while !stopped.load(Ordering::Relaxed) {
            for name in names {
                let held = user.lock(name).wait(FAILOVER).acquire().await.unwrap();
                held.release().await.unwrap();
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
    });
    // They keep their ports, so that no new node has the address of an old one.
    let mut gone = Vec::new();
    for at in 0..cluster.nodes().len() {
        gone.push(cluster.replace(at));
        held.renew().await.unwrap();
        let before = rounds.load(Ordering::Relaxed);
        eventually_async(SOON, async || rounds.load(Ordering::Relaxed) > before + 1).await;
    }
    stop.store(true, Ordering::Relaxed);
    working.await.unwrap();
    assert!(!held.is_lost());
    assert!(locks.lock(NAME).try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
    assert!(gone.iter().all(|node| node.connect().is_err()));
    // The new nodes are all that is left to ask.
    let owner = cluster.owner_of(KEY);
    let (heir, other) = (cluster.replica_of(owner), other_primary(&cluster));
    owner.kill9();
    cluster.wait_for_owner(KEY, heir);
    acquired(&locks).await.release().await.unwrap();
    cluster.move_slot(KEY, other);
    acquired(&locks).await.release().await.unwrap();
}
