//! Waiters for locks of Redisson subscribe at the new primary.

use lock_core::dialect::{Dialect, RedissonLock};
use test_support::fixtures::{SOON, ms};
use test_support::{RedisServer, SentinelService, eventually_async};
use tests::in_time;
use topologies::connect;

use super::{FAILOVER, NAME};

const KEY: &str = "lock:order:42";
const CHANNEL: &str = "redisson_lock__channel:{lock:order:42}";
const THREAD: &str = "3f0cf1e4-63a4-4a5e-9d3f-0b6a2f6f9f11:41";

async fn is_subscribed(server: &RedisServer) {
    eventually_async(SOON, async || {
        let reply = server.cli(&["PUBSUB", "NUMSUB", CHANNEL]);
        reply.array()[1].integer() == 1
    })
    .await;
    // The waiter polls until it has seen the subscription.
    tokio::time::sleep(ms(200)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_is_woken_by_the_new_primary() {
    let service = SentinelService::start();
    let locks = connect(&service.url()).await;
    let lock_as_redisson = |server: &RedisServer| {
        server.cli(&["HSET", KEY, THREAD, "1"]);
        assert_eq!(server.cli(&["PEXPIRE", KEY, "60000"]).integer(), 1);
    };
    lock_as_redisson(service.primary());
    let request = locks.lock(NAME).dialect(Dialect::Redisson {
        lock: RedissonLock::Plain,
    });
    let waiter = tokio::spawn(request.wait(FAILOVER).acquire());
    is_subscribed(service.primary()).await;
    service.failover();
    let primary = service.primary();
    is_subscribed(primary).await;
    assert!(!waiter.is_finished());
    assert_eq!(primary.cli(&["DEL", KEY]).integer(), 1, "it was copied");
    assert_eq!(primary.cli(&["PUBLISH", CHANNEL, "0"]).integer(), 1);
    let held = in_time(ms(300), waiter).await.unwrap().unwrap();
    held.release().await.unwrap();
}
