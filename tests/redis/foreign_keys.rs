//! Keys of other programs, and how a request handles their expiry.

use std::time::{Duration, Instant};

use lock_core::{LockError, LockManager};
use test_support::RedisServer;
use test_support::fixtures::{KEY, LONG, NAME, QUEUE, SOON, ms};
use tests::{in_time, shut_down, start_waiter};

use super::queue::MINUTES;
use super::{connect, connect_with};

/// Checks that one call about a key without expiry returns `ForeignKey` in time.
async fn assert_foreign_key(locks: LockManager, wait: Option<Duration>, is_try: bool) {
    let request = locks.lock(NAME);
    let request = match wait {
        Some(wait) => request.wait(wait),
        None => request,
    };
    let started = Instant::now();
    let call = async {
        if is_try {
            request.try_acquire().await.unwrap_err()
        } else {
            request.acquire().await.unwrap_err()
        }
    };
    let error = in_time(wait.unwrap_or_default() + ms(100), call).await;
    let took = started.elapsed();
    assert!(
        matches!(error, LockError::ForeignKey { .. }),
        "{wait:?}: {error}"
    );
    assert!(!error.is_contended());
    assert!(took >= ms(190), "{wait:?}: {took:?}");
}

/// The key may be about to get its expiry, or it is no lock. Every call finds out, in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_without_expiry_is_a_foreign_key_for_every_call() {
    let server = RedisServer::start();
    let impatient = LockManager::builder().command_timeout(ms(150));
    for builder in [LockManager::builder(), impatient] {
        let locks = connect_with(builder, &server.url()).await;
        server.cli(&["SET", KEY, "no lock"]);
        let mut calls = tokio::task::JoinSet::new();
        for wait in [None, Some(30), Some(60), Some(150), Some(190), Some(400)] {
            for is_try in [false, true] {
                calls.spawn(assert_foreign_key(locks.clone(), wait.map(ms), is_try));
            }
        }
        while let Some(call) = calls.join_next().await {
            call.unwrap();
        }
        // A key that gets its expiry in the meantime counts as a lock.
        server.cli(&["SET", KEY, "slow client"]);
        let trying = tokio::spawn(locks.lock(NAME).acquire());
        tokio::time::sleep(ms(80)).await;
        server.cli(&["PEXPIRE", KEY, "60000"]);
        let error = trying.await.unwrap().unwrap_err();
        assert!(error.is_contended(), "{error}");
        server.cli(&["DEL", KEY]);
        shut_down(&locks).await;
    }
}

/// A waiter waits for another client's lock that expires in three million years.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_key_with_a_huge_expiry_is_contended() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    for expiry in ["100000000000000000", "9223370000000000000"] {
        assert_eq!(
            server.cli(&["SET", KEY, "foreign", "PX", expiry]).text(),
            "OK"
        );
        let error = locks.lock(NAME).acquire().await.unwrap_err();
        assert!(error.is_contended(), "{error}");
        let error = locks.lock(NAME).wait(ms(150)).acquire().await.unwrap_err();
        assert!(matches!(error, LockError::Timeout { .. }), "{error}");
        let waiting = start_waiter(&server, locks.lock(NAME).ttl(LONG).wait(SOON), 1).await;
        let queue_lives = server.cli(&["PTTL", QUEUE]).integer();
        assert!(
            queue_lives > MINUTES && queue_lives <= MINUTES + 86_400_000,
            "{queue_lives}"
        );
        server.cli(&["DEL", KEY]);
        waiting.await.unwrap().unwrap().release().await.unwrap();
        shut_down(&locks).await;
    }
}
