//! Keys of other programs, and what a request does about their expiry.

use std::time::{Duration, Instant};

use lock_core::{LockError, LockManager};
use test_support::RedisServer;
use test_support::fixtures::{KEY, LONG, NAME, NOTICE, QUEUE, SOON, ms};
use tests::{shut_down, start_waiter};

use super::queue::MINUTES;
use super::{connect, connect_with};

/// The error of one call about a key without expiry, which has to come in time.
async fn no_expiry(locks: LockManager, wait: Option<Duration>, tries: bool) {
    let request = locks.lock(NAME);
    let request = match wait {
        Some(wait) => request.wait(wait),
        None => request,
    };
    let asked = Instant::now();
    let error = if tries {
        request.try_acquire().await.unwrap_err()
    } else {
        request.acquire().await.unwrap_err()
    };
    let took = asked.elapsed();
    assert!(
        matches!(error, LockError::ForeignKey { .. }),
        "{wait:?}: {error}"
    );
    assert!(!error.is_contended());
    let bound = wait.unwrap_or(Duration::ZERO) + NOTICE;
    assert!(
        took >= ms(190) && took < bound + ms(100),
        "{wait:?}: {took:?}"
    );
}

/// It is about to get its expiry, or it is no lock: every call finds out, in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_without_expiry_is_a_foreign_key_for_every_call() {
    let server = RedisServer::start();
    let impatient = LockManager::builder().command_timeout(ms(50));
    for builder in [LockManager::builder(), impatient] {
        let locks = connect_with(builder, &server.url()).await;
        server.cli(&["SET", KEY, "no lock"]);
        let mut calls = tokio::task::JoinSet::new();
        for wait in [None, Some(30), Some(60), Some(150), Some(190), Some(400)] {
            for tries in [false, true] {
                calls.spawn(no_expiry(locks.clone(), wait.map(ms), tries));
            }
        }
        while let Some(call) = calls.join_next().await {
            call.unwrap();
        }
        // One that gets its expiry meanwhile is a lock like any other.
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

/// The lock of another client that expires in three million years is waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_key_with_an_expiry_beyond_all_bounds_is_waited_for() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    for expiry in ["100000000000000000", "9223370000000000000"] {
        assert_eq!(
            server.cli(&["SET", KEY, "theirs", "PX", expiry]).text(),
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
