//! Clients of other libraries on the same key.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use lock_core::config::Handover;
use lock_core::{LockError, LockManager, LockManagerBuilder};
use test_support::fixtures::{AT_ONCE, KEY, NAME, SLACK, SOON, ms};
use test_support::{RedisServer, Reply, Stopwatch, eventually};
use tests::{granted, shut_down, start_waiter};

use super::connect;
use super::turns::{Storm, take_turns};

/// Short enough for a test to wait for a renewal, and long enough that a busy machine renews in
/// time.
const TTL: Duration = ms(600);

/// The foreign client releases by `DEL`, which notifies no waiter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_gets_the_lock_after_a_foreign_holder() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    for _ in 0..3 {
        let set = server.cli(&["SET", KEY, "redis-py:5f1c", "NX", "PX", "30000"]);
        assert_eq!(set.text(), "OK");
        let error = locks.lock(NAME).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::Contended { .. }), "{error}");
        let holder = error.holder().unwrap();
        assert_eq!(&*holder.label, "a client of another library");
        assert!(!error.to_string().contains("redis-py:5f1c"), "{error}");
        assert!(!holder.is_own());
        assert!(holder.remaining.unwrap() > Duration::from_secs(25));

        let first = start_waiter(&server, locks.lock(NAME).wait(SOON), 1).await;
        let second = start_waiter(&server, locks.lock(NAME).wait(SOON), 2).await;
        assert_eq!(server.cli(&["GET", KEY]).text(), "redis-py:5f1c");
        let deleted = Stopwatch::start();
        server.cli(&["DEL", KEY]);
        let held = granted(AT_ONCE, first).await;
        let took = deleted.elapsed();
        // The waiter polls every 50 ms. The rest is for a busy machine.
        assert!(took < ms(200) + deleted.stalled(), "{took:?}");
        held.release().await.unwrap();
        granted(AT_ONCE, second).await.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_gets_the_lock_after_a_foreign_holder_dies() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    server.cli(&["SET", KEY, "jedis", "NX", "PX", "400"]);
    let started = Stopwatch::start();
    let held = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
    let took = started.elapsed();
    assert!(took < ms(400) + SLACK + started.stalled(), "{took:?}");
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_client_does_not_get_a_held_lock() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let set = ["SET", KEY, "mine", "NX", "PX", "1000"];
    let held = locks.lock(NAME).acquire().await.unwrap();
    assert_eq!(server.cli(&set), Reply::Nil);
    let waiting = start_waiter(&server, locks.lock(NAME).wait(SOON), 1).await;
    held.release().await.unwrap();
    assert_eq!(
        server.cli(&set),
        Reply::Nil,
        "the lock was handed over to the waiter"
    );
    granted(AT_ONCE, waiting).await.release().await.unwrap();
    assert_eq!(server.cli(&set).text(), "OK");
}

/// The library does not delete, extend or trust a value that another client wrote to a lost lock's
/// key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_value_of_a_lost_lock_is_not_changed() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).ttl(TTL).acquire().await.unwrap();
    server.cli(&["SET", KEY, "foreign", "PX", "30000"]);
    tokio::time::timeout(TTL, held.lost()).await.unwrap();
    let error = held.release().await.unwrap_err();
    assert!(matches!(error, LockError::Lost { .. }), "{error}");
    shut_down(&locks).await;
    assert_eq!(server.cli(&["GET", KEY]).text(), "foreign");
    assert!(server.cli(&["PTTL", KEY]).integer() > 25_000);
}

/// The foreign client sends two commands, and the key has no expiry between them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_accepts_a_key_that_gets_its_expiry_later() {
    let server = Arc::new(RedisServer::start());
    let locks = connect(&server).await;
    assert_eq!(server.cli(&["SETNX", KEY, "old-client"]).integer(), 1);
    let waiting = start_waiter(&server, locks.lock(NAME).wait(SOON), 1).await;
    let attempt = tokio::spawn(locks.lock(NAME).try_acquire());
    let expiry = thread::spawn({
        let server = Arc::clone(&server);
        move || {
            thread::sleep(ms(60));
            server.cli(&["PEXPIRE", KEY, "300"]).integer()
        }
    });
    let tried = attempt.await.unwrap().unwrap();
    assert!(tried.is_none(), "{tried:?}");
    let held = granted(ms(400) + SLACK, waiting).await;
    assert_eq!(expiry.join().unwrap(), 1);
    held.release().await.unwrap();
}

/// Counts how often a client that polls for a free key gets it while tasks of the library take
/// turns.
async fn count_turns_of_a_poller(builder: LockManagerBuilder, sections: usize) -> u64 {
    let server = Arc::new(RedisServer::start());
    let locks = builder.connect(&server.url()).await.unwrap();
    let turns = Arc::new(AtomicU64::new(0));
    let mut client = server.connect().unwrap();
    let storm = Storm::new(ms(5), {
        let turns = Arc::clone(&turns);
        move || {
            let set = ["SET", KEY, "poller", "NX", "PX", "10000"];
            if client.call(&set).unwrap() != Reply::Nil {
                turns.fetch_add(1, Ordering::AcqRel);
                client.call(&["DEL", KEY]).unwrap();
            }
        }
    });
    eventually(SOON, || storm.rounds() > 0);
    let before = turns.load(Ordering::Acquire);
    take_turns(&[locks], 4, sections, ms(1)).await;
    let turns = turns.load(Ordering::Acquire) - before;
    drop(storm);
    turns
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn yield_to_others_gives_polling_clients_a_turn() {
    let shared = LockManager::builder().handover(Handover::YieldToOthers);
    let turns = count_turns_of_a_poller(shared, 5).await;
    assert!(turns >= 5, "{turns} turns beside 20 native ones");
}
