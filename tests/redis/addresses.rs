//! An address that leads to several servers, at the same time or one after the other.

use std::time::Duration;

use lock_core::error::BackendErrorKind;
use lock_core::{LockGuard, LockManager};
use test_support::fixtures::{KEY, NAME, SOON, exists, ms};
use test_support::{Proxy, RedisServer, eventually_async};
use tests::{Trace, backend_error_kind, one_attempt};

use super::connect_with;

const SEVERAL: &str = "this address leads to several servers";

/// A manager behind a proxy, and a lock that its background worker renews at the first server.
struct Fixture {
    servers: [RedisServer; 2],
    proxy: Proxy,
    locks: LockManager,
    held: LockGuard,
}

impl Fixture {
    async fn start() -> Self {
        Self::with_timeout(ms(500)).await
    }

    async fn with_timeout(timeout: Duration) -> Self {
        let servers = [RedisServer::start(), RedisServer::start()];
        let proxy = Proxy::in_front_of(&servers[0]);
        let builder = one_attempt(LockManager::builder()).command_timeout(timeout);
        let locks = connect_with(builder, &proxy.url()).await;
        let ttl = Duration::from_secs(3);
        let held = locks.lock(NAME).ttl(ttl).acquire().await.unwrap();
        // The worker renews it over its own connection.
        let have_run_scripts = || {
            let clients = servers[0].cli(&["CLIENT", "LIST"]);
            clients.text().matches("cmd=evalsha").count()
        };
        eventually_async(SOON, async || have_run_scripts() == 2).await;
        Self {
            servers,
            proxy,
            locks,
            held,
        }
    }

    /// The next connections lead to the second server, and this runtime needs one.
    fn leads_to_the_second(&self) {
        self.proxy.lead_to(&self.servers[1]);
        self.proxy.cut(0);
    }
}

#[tokio::test]
async fn second_server_behind_an_address_grants_nothing_while_the_first_replies() {
    let (trace, _collecting) = Trace::begin();
    // The first one must not seem silent, however busy the machine is.
    let it = Fixture::with_timeout(Duration::from_secs(2)).await;
    it.leads_to_the_second();
    for _ in 0..2 {
        // On a busy machine, an attempt may end before the servers have told who they are.
        eventually_async(SOON, async || {
            let outcome = it.locks.lock(NAME).try_acquire().await;
            backend_error_kind(outcome) == BackendErrorKind::Unreachable
        })
        .await;
    }
    assert!(!exists(&it.servers[1], KEY) && !it.held.is_lost());
    assert_eq!(trace.count(SEVERAL), 1, "{}", trace.text());
    it.proxy.lead_to(&it.servers[0]);
    // A connection that was being opened may still lead to the second one.
    eventually_async(SOON, async || {
        let outcome = it.locks.lock(NAME).try_acquire().await;
        outcome.is_ok_and(|held| held.is_none())
    })
    .await;
    it.held.release().await.unwrap();
    // The second server takes over.
    it.servers[0].kill9();
    it.proxy.lead_to(&it.servers[1]);
    let next = it.locks.lock(NAME).wait(SOON).acquire().await.unwrap();
    assert!(exists(&it.servers[1], KEY));
    next.release().await.unwrap();
}

/// After a failover behind the address, the old primary still replies, and says that it is a replica.
#[tokio::test]
async fn server_that_became_a_replica_is_replaced() {
    let it = Fixture::start().await;
    // From here on, the open connection of the worker is idle.
    it.held.release().await.unwrap();
    let primary = it.servers[1].port().to_string();
    it.servers[0].cli(&["REPLICAOF", "127.0.0.1", &primary]);
    it.proxy.lead_to(&it.servers[1]);
    it.proxy.cut(0);
    let next = it.locks.lock(NAME).wait(SOON).acquire().await.unwrap();
    assert!(exists(&it.servers[1], KEY));
    next.release().await.unwrap();
}

/// A waiter that is subscribed at the old primary would never hear of a release at the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscription_follows_the_commands_to_another_server() {
    let it = Fixture::start().await;
    let subscribers = |server: &RedisServer| {
        let clients = server.cli(&["CLIENT", "LIST", "TYPE", "pubsub"]);
        clients.text().lines().count()
    };
    let wait = || tokio::spawn(it.locks.lock(NAME).wait(SOON).acquire());
    let first = wait();
    eventually_async(SOON, async || subscribers(&it.servers[0]) == 1).await;
    let primary = it.servers[1].port().to_string();
    it.servers[0].cli(&["REPLICAOF", "127.0.0.1", &primary]);
    it.proxy.lead_to(&it.servers[1]);
    it.proxy.cut(0);
    let held = first.await.unwrap().unwrap();
    let second = wait();
    eventually_async(SOON, async || subscribers(&it.servers[1]) == 1).await;
    held.release().await.unwrap();
    second.await.unwrap().unwrap().release().await.unwrap();
}

/// The old server is gone without a word: its connections are open, and stay silent.
#[tokio::test]
async fn server_that_is_silent_is_replaced() {
    let it = Fixture::start().await;
    it.servers[0].stop();
    it.leads_to_the_second();
    let next = it.locks.lock("other").wait(SOON).acquire().await.unwrap();
    assert!(exists(&it.servers[1], "lock:other"));
    next.release().await.unwrap();
}
