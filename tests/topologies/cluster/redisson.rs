//! Locks of Redisson in a cluster: Redisson listens to sharded channels since 3.22.0, and to classic ones before.

use std::time::Duration;

use lock_core::LockRequest;
use lock_core::dialect::{Dialect, RedissonLock};
use test_support::fixtures::{LONG, SOON, ms};
use test_support::{RedisCluster, RedisServer, eventually_async};
use tests::{Trace, in_time};
use topologies::connect;

use super::{KEY, NAME, other_primary};

const CHANNEL: &str = "redisson_lock__channel:{lock:order:42}";
const THREAD: &str = "3f0cf1e4-63a4-4a5e-9d3f-0b6a2f6f9f11:41";

/// Less than the time to the first poll of a waiter, also with the tolerance of `in_time`.
const BY_MESSAGE: Duration = ms(300);

fn in_redisson(request: LockRequest) -> LockRequest {
    request.dialect(Dialect::Redisson {
        lock: RedissonLock::Fenced,
    })
}

fn lock_as_redisson(owner: &RedisServer) {
    owner.cli(&["HSET", KEY, THREAD, "1"]);
    let lease = LONG.as_millis().to_string();
    assert_eq!(owner.cli(&["PEXPIRE", KEY, &lease]).integer(), 1);
}

/// Waits until a waiter has both subscriptions at this node.
async fn is_subscribed(owner: &RedisServer) {
    eventually_async(SOON, async || {
        let count = |command| owner.cli(&["PUBSUB", command, CHANNEL]).array()[1].integer();
        count("NUMSUB") == 1 && count("SHARDNUMSUB") == 1
    })
    .await;
    // The waiter asks again after the confirmation.
    tokio::time::sleep(ms(50)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_of_each_kind_wakes_a_waiter() {
    let cluster = RedisCluster::start();
    let locks = connect(&cluster.url()).await;
    let owner = cluster.owner_of(KEY);
    for publish in ["PUBLISH", "SPUBLISH"] {
        lock_as_redisson(owner);
        let waiting = tokio::spawn(in_redisson(locks.lock(NAME)).wait(SOON).acquire());
        is_subscribed(owner).await;
        assert!(!waiting.is_finished());
        assert_eq!(owner.cli(&["DEL", KEY]).integer(), 1);
        assert_eq!(owner.cli(&[publish, CHANNEL, "0"]).integer(), 1);
        let held = in_time(BY_MESSAGE, waiting).await.unwrap().unwrap();
        held.release().await.unwrap();
    }
    assert!(locks.ping().await.unwrap().notifies_waiters);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_is_announced_to_each_version_of_redisson() {
    let cluster = RedisCluster::start();
    let locks = connect(&cluster.url()).await;
    let owner = cluster.owner_of(KEY);
    let held = in_redisson(locks.lock(NAME)).acquire().await.unwrap();
    let mut subscribers = ["SUBSCRIBE", "SSUBSCRIBE"].map(|subscribe| {
        let mut subscriber = owner.connect().unwrap();
        subscriber.call(&[subscribe, CHANNEL]).unwrap();
        subscriber
    });
    held.release().await.unwrap();
    for subscriber in &mut subscribers {
        let message = subscriber.receive().unwrap();
        assert_eq!(message.array()[2].text(), "0");
    }
}

/// The waiter subscribes at the new owner of the slot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_is_woken_after_its_slot_has_moved() {
    let cluster = RedisCluster::start();
    let locks = connect(&cluster.url()).await;
    lock_as_redisson(cluster.owner_of(KEY));
    let waiting = tokio::spawn(in_redisson(locks.lock(NAME)).wait(SOON).acquire());
    is_subscribed(cluster.owner_of(KEY)).await;
    let to = other_primary(&cluster);
    cluster.move_slot(KEY, to);
    is_subscribed(to).await;
    assert!(!waiting.is_finished());
    assert_eq!(to.cli(&["DEL", KEY]).integer(), 1);
    to.cli(&["SPUBLISH", CHANNEL, "0"]);
    let held = in_time(BY_MESSAGE, waiting).await.unwrap().unwrap();
    held.release().await.unwrap();
}

/// The rights for a single server are too few in a cluster, and newer versions of Redisson hear nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_message_of_one_kind_is_reported() {
    let cluster = RedisCluster::start();
    for node in cluster.nodes() {
        let user = [
            "ACL",
            "SETUSER",
            "app",
            "on",
            ">one",
            "~*",
            "&*",
            "+@all",
            "-spublish",
        ];
        assert_eq!(node.cli(&user).text(), "OK");
    }
    let (trace, _guard) = Trace::begin();
    let locks = connect(&cluster.url().replace("://", "://app:one@")).await;
    for _ in 0..2 {
        let held = in_redisson(locks.lock(NAME)).acquire().await.unwrap();
        held.release().await.unwrap();
    }
    assert_eq!(
        trace.count("do not learn of all releases"),
        1,
        "{}",
        trace.text()
    );
    trace.assert_says("SPUBLISH");
}
