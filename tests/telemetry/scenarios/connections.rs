//! Connections that begin, break and are made again, and what arrives on them.

use lock_core::LockManager;
use test_support::fixtures::{LONG, NAME, QUEUE, SOON};
use test_support::{RedisServer, SentinelService, eventually_async};
use tests::{connect, connect_to, start_waiter};

use super::Proof;

const METRIC: &str = "distributed_lock.notifications";

pub(super) async fn run(proof: &mut Proof) {
    not_connected(proof).await;
    restarted(proof).await;
    notified(proof).await;
    failed_over(proof).await;
}

async fn failed_over(proof: &mut Proof) {
    proof.begin();
    let service = SentinelService::start();
    let locks = connect_to(&service.url()).await;
    service.failover();
    proof.event("lock.primary_changed", "WARN").await;
    drop(locks);
}

async fn not_connected(proof: &mut Proof) {
    proof.begin();
    let server = RedisServer::start();
    server.kill9();
    let locks = LockManager::builder().connect_lazy(server.url()).unwrap();
    proof.event("lock.not_connected", "WARN").await;
    drop(locks);
}

async fn restarted(proof: &mut Proof) {
    proof.begin();
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    // Opens the worker's connection, over which notifications arrive.
    let waiter = start_waiter(&server, locks.lock(NAME).ttl(LONG).wait(SOON), 1).await;
    drop(held);
    drop(waiter.await.unwrap().unwrap());
    proof.event("lock.connected", "INFO").await;
    server.restart();
    let again = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
    proof.event("lock.disconnected", "WARN").await;
    drop(again);
    for connection in ["command", "worker"] {
        let labels = [("connection", connection)];
        proof.metric("distributed_lock.reconnects", &labels).await;
    }
}

/// Returns the owner id and the channel of the only waiter.
fn waiter(server: &RedisServer) -> (String, String) {
    let entries = server.cli(&["ZRANGE", QUEUE, "0", "0"]);
    let words: Vec<_> = entries.array()[0].text().split(' ').collect();
    (words[0].to_owned(), words[4].to_owned())
}

async fn notified(proof: &mut Proof) {
    proof.begin();
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    let waiting = start_waiter(&server, locks.lock(NAME).ttl(LONG).wait(SOON), 1).await;
    let (id, channel) = waiter(&server);
    let publish = |text: &str| {
        assert_eq!(server.cli(&["PUBLISH", &channel, text]).integer(), 1);
    };
    let kind = |kind, outcome| [("kind", kind), ("outcome", outcome)];

    publish("hello");
    proof.event("lock.unknown_message", "DEBUG").await;
    // A lease that is longer than a handover gives.
    publish(&format!("g {id} {} 0 3600000", u64::MAX));
    proof.event("lock.notification_refused", "WARN").await;
    proof.metric(METRIC, &kind("grant", "refused")).await;
    // No waiter has this id.
    publish("g 00000000-0000-4000-8000-000000000000 7 0 2000");
    proof.event("lock.notification_stale", "DEBUG").await;
    proof.metric(METRIC, &kind("grant", "stale")).await;

    // The second waiter becomes the head of the queue when the first one gets the lock.
    let second = start_waiter(&server, locks.lock(NAME).ttl(LONG).wait(SOON), 2).await;
    held.release().await.unwrap();
    let first = waiting.await.unwrap().unwrap();
    proof.metric(METRIC, &kind("head", "used")).await;
    first.release().await.unwrap();
    drop(second.await.unwrap().unwrap());
    eventually_async(SOON, async || server.cli(&["EXISTS", QUEUE]).integer() == 0).await;
}
