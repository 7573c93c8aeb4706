//! Subscriptions that break at once, and calls that need none.

use std::time::{Duration, Instant};

use lock_core::LockManager;
use test_support::fixtures::SOON;
use test_support::{RedisCluster, RedisServer, eventually_async};
use tests::{fencing_token, one_attempt};
use topologies::connect;

use super::{FAILOVER, KEY, NAME, other_primary, start_waiter};

/// Much longer than the test waits for anything.
const PATIENCE: Duration = Duration::from_secs(300);

/// Connects a manager that would wait for a subscription for half of its command timeout.
async fn patient(cluster: &RedisCluster) -> LockManager {
    let builder = one_attempt(LockManager::builder()).command_timeout(PATIENCE);
    builder.connect(&cluster.url()).await.unwrap()
}

/// Returns how often a node has got this command.
fn calls(node: &RedisServer, command: &str) -> u64 {
    let stats = node.cli(&["INFO", "commandstats"]);
    let line = format!("cmdstat_{command}:calls=");
    let found = stats.text().lines().find_map(|it| it.strip_prefix(&line));
    let count = found.and_then(|rest| rest.split(',').next()?.parse().ok());
    count.unwrap_or_default()
}

/// The node accepts connections, and each of them breaks at its first subscription.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscriptions_that_break_at_once_are_made_again_with_pauses() {
    const SPAN: Duration = Duration::from_secs(3);
    let cluster = RedisCluster::start();
    let proxies = cluster.proxies();
    let locks = connect(&cluster.url_through(&proxies)).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    let owner = cluster.owner_of(KEY).port();
    let nodes = cluster.nodes().iter().zip(&proxies);
    let (_, proxy) = { nodes }.find(|(node, _)| node.port() == owner).unwrap();
    proxy.lose_each("SSUBSCRIBE");
    let before = proxy.accepted();
    let waiter = tokio::spawn(locks.lock(NAME).wait(FAILOVER).acquire());
    eventually_async(SOON, async || proxy.accepted() > before).await;
    let (before, began) = (proxy.accepted(), Instant::now());
    tokio::time::sleep(SPAN).await;
    // The pauses grow from 10 ms to half a second, less a quarter.
    let most = 8 + usize::try_from(began.elapsed().as_millis() / 375).unwrap();
    let more = proxy.accepted() - before;
    assert!(more <= most, "{more} in {SPAN:?}");
    // The waiter polls meanwhile, and is subscribed when the node takes subscriptions.
    proxy.forward();
    let node = cluster.owner_of(KEY);
    eventually_async(SOON, async || calls(node, "ssubscribe") > 0).await;
    held.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

/// All keys of the lock have moved, and the slot is still open. A manager that has never used the lock asks the new
/// node, where it has no subscription.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_in_an_open_slot_waits_for_no_subscription() {
    let cluster = RedisCluster::start();
    let (first, second) = (connect(&cluster.url()).await, patient(&cluster).await);
    let held = first.lock(NAME).acquire().await.unwrap();
    let token = fencing_token(&held);
    let (from, to) = (cluster.owner_of(KEY), other_primary(&cluster));
    let queued = start_waiter(&first).await;
    // A script runs at the new node if all of its keys are there. These have no effect: a grace without an
    // expiry, and the holders of a key that is not shared.
    let (grace, holders) = ("{lock:order:42}:g", "{lock:order:42}:h");
    from.cli(&["SET", grace, "1"]);
    from.cli(&["ZADD", holders, "1", "nobody"]);
    cluster.begin_move(KEY, to);
    let (counter, queue) = ("{lock:order:42}:f", "{lock:order:42}:q");
    cluster.move_keys(&[KEY, counter, queue, grace, holders], to);
    let waiter = tokio::spawn(second.lock(NAME).wait(PATIENCE).acquire());
    let waiters = || {
        let mut connection = to.connect().unwrap();
        connection.call(&["ASKING"]).unwrap();
        connection.call(&["ZCARD", queue]).unwrap().integer()
    };
    eventually_async(SOON, async || waiters() == 2).await;
    // A free lock lacks a key, so it is granted after the move only.
    cluster.end_move(KEY, to);
    queued.abort();
    held.release().await.unwrap();
    let next = tokio::time::timeout(FAILOVER, waiter).await.unwrap();
    let next = next.unwrap().unwrap();
    assert!(fencing_token(&next) > token);
    next.release().await.unwrap();
}
