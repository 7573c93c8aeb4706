//! Waiters for locks of Redisson: what wakes them, and what they do when nothing wakes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lock_core::LockManager;
use lock_core::telemetry::{LockEvent, NotificationKind, NotificationUse};
use test_support::fixtures::{AT_ONCE, KEY, LONG, NAME, SLACK, SOON, all_keys, kill_clients, ms};
use test_support::{Direction, Proxy, RedisServer, Reply, eventually_async};
use tests::{in_time, one_attempt, poll_once};

use super::redisson::{
    CHANNEL, FENCED, REDISSON, lock_as_redisson, scripts_run, unlock_as_redisson,
};

/// A waiter that gets no message polls at least this often.
const CAP: Duration = Duration::from_secs(1);

/// Less than the time to the first poll, also with the tolerance of `in_time`.
const BY_MESSAGE: Duration = ms(300);

/// A manager, and how often a message woke one of its waiters.
async fn connect(server: &RedisServer) -> (LockManager, Arc<AtomicUsize>) {
    connect_to(&server.url()).await
}

async fn connect_to(url: &str) -> (LockManager, Arc<AtomicUsize>) {
    let woken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&woken);
    let builder = one_attempt(LockManager::builder()).dialect(REDISSON);
    let builder = builder.observer(move |event: &LockEvent<'_>| {
        if let LockEvent::NotificationReceived {
            kind: NotificationKind::Released,
            outcome: NotificationUse::Used,
            ..
        } = event
        {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    (builder.connect(url).await.unwrap(), woken)
}

fn subscribers(server: &RedisServer) -> i64 {
    server.cli(&["PUBSUB", "NUMSUB", CHANNEL]).array()[1].integer()
}

pub(crate) async fn is_subscribed(server: &RedisServer) {
    eventually_async(SOON, async || subscribers(server) == 1).await;
    // The waiters ask again after the confirmation.
    let mut before = -1;
    eventually_async(SOON, async || {
        tokio::time::sleep(ms(150)).await;
        let now = scripts_run(server);
        std::mem::replace(&mut before, now) == now
    })
    .await;
}

#[tokio::test]
async fn message_wakes_a_waiter() {
    let server = RedisServer::start();
    let (locks, woken) = connect(&server).await;
    lock_as_redisson(&server, LONG);
    let waiting = tokio::spawn(locks.lock(NAME).wait(SOON).acquire());
    is_subscribed(&server).await;
    let before = scripts_run(&server);
    assert_eq!(unlock_as_redisson(&server), 1);
    let held = in_time(BY_MESSAGE, waiting).await.unwrap().unwrap();
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    assert_eq!(scripts_run(&server) - before, 1, "one poll");
    held.release().await.unwrap();
}

/// The release may come after the first command, and before the subscription.
#[tokio::test]
async fn release_before_the_subscription_is_not_missed() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let (locks, _) = connect_to(&proxy.url()).await;
    // A new connection and a subscription take some of these times.
    proxy.delay(Direction::ToServer, ms(20));
    lock_as_redisson(&server, LONG);
    let before = scripts_run(&server);
    let waiting = tokio::spawn(locks.lock(NAME).wait(SOON).acquire());
    eventually_async(SOON, async || scripts_run(&server) > before).await;
    assert_eq!(unlock_as_redisson(&server), 0, "no subscription yet");
    let held = in_time(BY_MESSAGE, waiting).await.unwrap().unwrap();
    held.release().await.unwrap();
}

/// The message takes another connection than the reply, and may be faster.
#[tokio::test]
async fn message_that_overtakes_the_reply_is_not_missed() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let (locks, woken) = connect_to(&proxy.url()).await;
    // The first wait makes the subscription, and proves it.
    lock_as_redisson(&server, LONG);
    let first = tokio::spawn(locks.lock(NAME).wait(SOON).acquire());
    is_subscribed(&server).await;
    unlock_as_redisson(&server);
    first.await.unwrap().unwrap().release().await.unwrap();
    lock_as_redisson(&server, LONG);
    // The connection of this runtime.
    proxy.hold(0, Direction::ToClient);
    let before = scripts_run(&server);
    let waiting = tokio::spawn(locks.lock(NAME).wait(SOON).acquire());
    eventually_async(SOON, async || scripts_run(&server) > before).await;
    assert_eq!(unlock_as_redisson(&server), 1);
    tokio::time::sleep(ms(50)).await;
    proxy.resume(0);
    let held = in_time(BY_MESSAGE, waiting).await.unwrap().unwrap();
    assert_eq!(woken.load(Ordering::Relaxed), 2);
    held.release().await.unwrap();
}

/// As in a JVM: the others would only find the lock busy.
#[tokio::test]
async fn message_wakes_one_waiter_of_a_manager() {
    let server = RedisServer::start();
    let (locks, woken) = connect(&server).await;
    lock_as_redisson(&server, LONG);
    let waiting: Vec<_> = (0..5)
        .map(|_| tokio::spawn(locks.lock(NAME).wait(SOON).acquire()))
        .collect();
    is_subscribed(&server).await;
    // The lock is not free: a client in Java was faster.
    for round in 1..=3 {
        server.cli(&["PUBLISH", CHANNEL, "0"]);
        eventually_async(AT_ONCE, async || woken.load(Ordering::Relaxed) == round).await;
    }
    tokio::time::sleep(ms(50)).await;
    assert_eq!(woken.load(Ordering::Relaxed), 3);
    // Each release of this manager wakes the next one.
    unlock_as_redisson(&server);
    for waiting in waiting {
        let held = in_time(BY_MESSAGE, waiting).await.unwrap().unwrap();
        held.release().await.unwrap();
    }
}

/// The waiter that the message was for is dropped before it polls.
#[tokio::test]
async fn dropped_waiter_passes_its_message_on() {
    let server = RedisServer::start();
    let (locks, _) = connect(&server).await;
    lock_as_redisson(&server, LONG);
    let mut first = Box::pin(locks.lock(NAME).wait(SOON).acquire());
    eventually_async(SOON, async || {
        assert!(poll_once(&mut first).await.is_pending());
        subscribers(&server) == 1
    })
    .await;
    for _ in 0..20 {
        assert!(poll_once(&mut first).await.is_pending());
        tokio::time::sleep(ms(5)).await;
    }
    let second = tokio::spawn(locks.lock(NAME).wait(SOON).acquire());
    tokio::time::sleep(ms(50)).await;
    assert_eq!(unlock_as_redisson(&server), 1);
    tokio::time::sleep(ms(50)).await;
    drop(first);
    let held = in_time(BY_MESSAGE, second).await.unwrap().unwrap();
    held.release().await.unwrap();
}

/// A spin lock of Redisson announces nothing, and a message may be lost.
#[tokio::test]
async fn release_without_a_message_is_found_within_a_second() {
    let server = RedisServer::start();
    let (locks, woken) = connect(&server).await;
    lock_as_redisson(&server, LONG);
    let waiting = tokio::spawn(locks.lock(NAME).wait(SOON).acquire());
    is_subscribed(&server).await;
    server.cli(&["DEL", KEY]);
    let held = in_time(CAP + SLACK, waiting).await.unwrap().unwrap();
    assert_eq!(woken.load(Ordering::Relaxed), 0);
    held.release().await.unwrap();
}

/// The end of a lease announces nothing.
#[tokio::test]
async fn lease_of_a_dead_holder_ends_the_wait() {
    let server = RedisServer::start();
    let (locks, _) = connect(&server).await;
    // The first wait makes the subscription, which takes a moment.
    lock_as_redisson(&server, ms(300));
    drop(locks.lock(NAME).wait(SOON).acquire().await.unwrap());
    eventually_async(SOON, async || {
        server.cli(&["EXISTS", KEY]) == Reply::Integer(0)
    })
    .await;
    // It polls at the end, and not at the first poll, after 750 ms at least.
    let lease = ms(400);
    lock_as_redisson(&server, lease);
    let locked = Instant::now();
    let held = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
    let waited = locked.elapsed();
    assert!(
        waited >= lease - SLACK && waited < lease + SLACK,
        "{waited:?}"
    );
    held.release().await.unwrap();
}

/// The holder has a subscription because another task of its process waits.
#[tokio::test]
async fn holder_is_told_at_once_when_the_lock_is_removed_by_force() {
    let server = RedisServer::start();
    let (locks, _) = connect(&server).await;
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(locks.lock(NAME).wait(SOON).acquire());
    is_subscribed(&server).await;
    unlock_as_redisson(&server);
    in_time(BY_MESSAGE, held.lost()).await;
    assert!(held.is_lost());
    let next = in_time(BY_MESSAGE, waiting).await.unwrap().unwrap();
    next.release().await.unwrap();
}

/// Otherwise a loop of one process gets nearly all turns: the other one first has to receive the message.
#[tokio::test]
async fn acquire_after_a_release_that_others_heard_waits_for_2_ms() {
    let server = RedisServer::start();
    let (locks, _) = connect(&server).await;
    let mut other = server.connect().unwrap();
    other.call(&["SUBSCRIBE", CHANNEL]).unwrap();
    for wait in [Duration::ZERO, SOON] {
        let held = locks.lock(NAME).acquire().await.unwrap();
        let releasing = Instant::now();
        held.release().await.unwrap();
        let next = locks.lock(NAME).wait(wait).acquire().await.unwrap();
        let paused = releasing.elapsed();
        assert!(paused >= ms(2), "{paused:?}");
        next.release().await.unwrap();
    }
}

/// The locks of a set go out one by one, and the pause is before the first.
#[tokio::test]
async fn set_after_a_release_that_others_heard_waits_for_2_ms() {
    let server = RedisServer::start();
    let (locks, _) = connect(&server).await;
    let mut other = server.connect().unwrap();
    other.call(&["SUBSCRIBE", CHANNEL]).unwrap();
    for wait in [Duration::ZERO, SOON] {
        let set = || locks.lock_all([NAME, "other"]).wait(wait).acquire();
        let held = set().await.unwrap();
        let releasing = Instant::now();
        held.release().await.unwrap();
        let next = set().await.unwrap();
        let paused = releasing.elapsed();
        assert!(paused >= ms(2), "{paused:?}");
        next.release().await.unwrap();
    }
}

/// After the connection broke, waiters poll until there is a new subscription.
#[tokio::test]
async fn broken_subscription_is_made_again() {
    let server = RedisServer::start();
    let (locks, woken) = connect(&server).await;
    lock_as_redisson(&server, LONG);
    let waiting = tokio::spawn(locks.lock(NAME).wait(SOON).acquire());
    is_subscribed(&server).await;
    assert_eq!(kill_clients(&server, "pubsub"), 1);
    is_subscribed(&server).await;
    // Until it relies on the new subscription, it polls often.
    let mut before = -1;
    eventually_async(SOON, async || {
        let polled = std::mem::replace(&mut before, scripts_run(&server));
        tokio::time::sleep(ms(150)).await;
        polled == scripts_run(&server)
    })
    .await;
    let before = woken.load(Ordering::Relaxed);
    unlock_as_redisson(&server);
    let held = in_time(BY_MESSAGE, waiting).await.unwrap().unwrap();
    assert_eq!(woken.load(Ordering::Relaxed), before + 1);
    held.release().await.unwrap();
    // A release while there is no subscription.
    lock_as_redisson(&server, LONG);
    let waiting = tokio::spawn(locks.lock(NAME).wait(SOON).acquire());
    is_subscribed(&server).await;
    kill_clients(&server, "pubsub");
    unlock_as_redisson(&server);
    drop(in_time(BY_MESSAGE, waiting).await.unwrap().unwrap());
}

/// The waiter has seen that there is no subscription, and would poll much later.
#[tokio::test]
async fn message_during_a_break_is_not_missed() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let builder = one_attempt(LockManager::builder()).dialect(REDISSON);
    let builder = builder.retry_interval(Duration::from_secs(60));
    let locks = builder.connect(&proxy.url()).await.unwrap();
    lock_as_redisson(&server, LONG);
    let waiting = tokio::spawn(locks.lock(NAME).wait(SOON).acquire());
    is_subscribed(&server).await;
    let before = scripts_run(&server);
    // The next connection subscribes a moment later.
    proxy.delay(Direction::ToServer, ms(30));
    assert_eq!(kill_clients(&server, "pubsub"), 1);
    eventually_async(SOON, async || scripts_run(&server) > before).await;
    assert_eq!(unlock_as_redisson(&server), 0);
    let held = in_time(ms(1_000), waiting).await.unwrap().unwrap();
    held.release().await.unwrap();
}

/// A probe has a name of its own, and the counter of a name has no expiry.
#[tokio::test]
async fn ping_leaves_no_counter() {
    let server = RedisServer::start();
    let builder = one_attempt(LockManager::builder()).dialect(FENCED);
    let locks = builder.connect(&server.url()).await.unwrap();
    assert!(locks.ping().await.unwrap().notifies_waiters);
    assert_eq!(all_keys(&server), Vec::<String>::new());
}

#[tokio::test]
async fn subscription_ends_ten_seconds_after_the_last_waiter() {
    let server = RedisServer::start();
    let (locks, _) = connect(&server).await;
    lock_as_redisson(&server, LONG);
    let waiting = tokio::spawn(locks.lock(NAME).wait(Duration::from_secs(11)).acquire());
    is_subscribed(&server).await;
    let error = waiting.await.unwrap().unwrap_err();
    assert!(error.is_contended(), "{error}");
    assert_eq!(subscribers(&server), 1, "a waiter had needed it");
    eventually_async(SOON, async || subscribers(&server) == 0).await;
}

/// Redisson and the manager's own channel need different rights, and one does not prevent the other.
#[tokio::test]
async fn channels_of_keys_need_no_right_to_the_channel_of_the_manager() {
    let server = RedisServer::start();
    let channel = "&redisson_lock__channel:*";
    let user = [
        "ACL",
        "SETUSER",
        "app",
        "on",
        ">pass",
        "~*",
        "resetchannels",
        channel,
        "+@all",
    ];
    server.cli(&user);
    let builder = one_attempt(LockManager::builder()).dialect(REDISSON);
    let url = format!("redis://app:pass@{}", server.address());
    let locks = builder.connect(&url).await.unwrap();
    assert!(locks.ping().await.unwrap().notifies_waiters);
    let native = locks
        .lock("other")
        .dialect(lock_core::dialect::Dialect::Native);
    drop(native.wait(SOON).acquire().await.unwrap());
    lock_as_redisson(&server, LONG);
    let waiting = tokio::spawn(locks.lock(NAME).wait(SOON).acquire());
    is_subscribed(&server).await;
    unlock_as_redisson(&server);
    drop(in_time(BY_MESSAGE, waiting).await.unwrap().unwrap());
}

#[tokio::test]
async fn set_of_locks_waits_for_a_lock_of_redisson() {
    let server = RedisServer::start();
    let (locks, woken) = connect(&server).await;
    lock_as_redisson(&server, LONG);
    let set = locks.lock_all(["a", NAME, "z"]).wait(SOON);
    let waiting = tokio::spawn(set.acquire());
    is_subscribed(&server).await;
    unlock_as_redisson(&server);
    let set = in_time(BY_MESSAGE, waiting).await.unwrap().unwrap();
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    set.release().await.unwrap();
}
