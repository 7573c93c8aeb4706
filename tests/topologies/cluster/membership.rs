//! Nodes that join and leave, and servers of others at their addresses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use lock_core::telemetry::LockEvent;
use lock_core::{LockManager, LockManagerBuilder};
use test_support::fixtures::{SOON, ms};
use test_support::{Proxy, RedisCluster, RedisServer, eventually_async, lone_node};
use tests::one_attempt;
use topologies::connect;

use super::{FAILOVER, KEY, NAME, acquired, other_primary};

/// Gives the addresses of some nodes to another server.
fn give_to(server: &RedisServer, addresses: &[Proxy]) {
    for address in addresses {
        address.lead_to(server);
        address.cut_all();
    }
}

/// A manager of a cluster, whose nodes it knows by the addresses of these proxies.
async fn through_proxies(
    cluster: &RedisCluster,
    builder: LockManagerBuilder,
) -> (LockManager, Vec<Proxy>) {
    let proxies = cluster.proxies();
    let builder = one_attempt(builder).command_timeout(ms(500));
    let url = cluster.url_through(&proxies);
    (builder.connect(&url).await.unwrap(), proxies)
}

/// It serves every slot, and would grant a lock that is held in the cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_of_others_at_the_address_of_a_node_grants_nothing() {
    let reports = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reports);
    let builder = LockManager::builder().observer(move |event: &LockEvent<'_>| {
        if matches!(
            event,
            LockEvent::ServerRestricted {
                command: "CLUSTER MYID",
                ..
            }
        ) {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let cluster = RedisCluster::start();
    let (locks, proxies) = through_proxies(&cluster, builder).await;
    locks
        .lock(NAME)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let held = connect(&cluster.url())
        .await
        .lock(NAME)
        .acquire()
        .await
        .unwrap();
    let owner = cluster.owner_of(KEY);
    let at = cluster
        .nodes()
        .iter()
        .position(|node| node.port() == owner.port())
        .unwrap();
    let (lone, single) = (lone_node(), RedisServer::start());
    for other in [&lone, &single] {
        give_to(other, &proxies[at..=at]);
        for _ in 0..3 {
            let error = locks.lock(NAME).try_acquire().await.unwrap_err();
            assert!(error.is_retryable(), "{error}");
            let text = error.to_string();
            assert!(
                text.contains("does not belong to the cluster in use"),
                "{text}"
            );
        }
        assert_eq!(other.cli(&["DBSIZE"]).integer(), 0);
    }
    assert_eq!(reports.load(Ordering::Relaxed), 1);
    // The node has its address again.
    give_to(owner, &proxies[at..=at]);
    eventually_async(SOON, async || {
        matches!(locks.lock(NAME).try_acquire().await, Ok(None))
    })
    .await;
    held.release().await.unwrap();
    acquired(&locks).await.release().await.unwrap();
}

/// It has other nodes, and begins with the first epoch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_that_was_set_up_anew_is_used_once_the_former_one_is_gone() {
    let cluster = RedisCluster::start();
    let (locks, proxies) = through_proxies(&cluster, LockManager::builder()).await;
    locks
        .lock(NAME)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    let next = lone_node();
    give_to(&next, &proxies);
    let held = acquired(&locks).await;
    assert_eq!(next.cli(&["EXISTS", KEY]).integer(), 1);
    // The new map names the node itself, so that a connection goes past the proxies.
    eventually_async(SOON, async || {
        let clients = next.cli(&["CLIENT", "LIST"]);
        let all = clients.text().matches("name=lock:").count();
        all > proxies.iter().map(Proxy::open).sum::<usize>()
    })
    .await;
    // One of the former nodes is back.
    give_to(cluster.owner_of(KEY), &proxies);
    held.renew().await.unwrap();
    assert!(matches!(locks.lock(NAME).try_acquire().await, Ok(None)));
    held.release().await.unwrap();
}

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
