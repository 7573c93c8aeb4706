//! The counters of events that no caller sees, next to the caller's result.

use std::time::Duration;

use lock_core::{LockError, LockManager, Renew, distributed_lock};
use test_support::{RedisServer, eventually_async};

use super::connect;

const SOON: Duration = Duration::from_secs(5);

#[distributed_lock(name = "a", manager = locks)]
async fn deletes_its_lock(locks: &LockManager, server: &RedisServer) -> Result<u8, LockError> {
    server.cli(&["DEL", "lock:a"]);
    Ok(7)
}

#[tokio::test]
async fn failed_release_is_counted_and_the_result_returned() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    assert_eq!(deletes_its_lock(&locks, &server).await.unwrap(), 7);
    let ran = locks.lock("a").run(async |_held| {
        server.cli(&["DEL", "lock:a"]);
        8
    });
    assert_eq!(ran.await.unwrap(), 8);
    assert_eq!(locks.stats().releases_failed, 2);

    // With a guard, the caller gets the error, and it is counted too.
    let guard = locks.lock("a").acquire().await.unwrap();
    server.cli(&["DEL", "lock:a"]);
    assert!(matches!(guard.release().await, Err(LockError::Lost { .. })));
    assert_eq!(locks.stats().releases_failed, 2);
}

#[tokio::test]
async fn loss_is_counted_once() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let every = Renew::Every(Duration::from_millis(20));
    let guard = locks.lock("a").renew(every).acquire().await.unwrap();
    server.cli(&["DEL", "lock:a"]);
    tokio::time::timeout(SOON, guard.lost()).await.unwrap();
    drop(guard);
    assert_eq!(locks.stats().lost, 1);
}

#[tokio::test]
async fn renewals_without_a_reply_are_counted() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let every = Renew::Every(Duration::from_millis(20));
    let guard = locks.lock("a").renew(every).acquire().await.unwrap();
    server.kill9();
    eventually_async(SOON, async || locks.stats().renewals_failed > 1).await;
    assert!(!guard.is_lost(), "the lease of 30 s is not over");
}

#[tokio::test(start_paused = true)]
async fn lease_that_expired_unnoticed_is_counted_at_the_release() {
    let locks = LockManager::in_memory();
    let guard = locks.lock("a").renew(Renew::Never).acquire().await.unwrap();
    tokio::time::advance(Duration::from_secs(31)).await;
    drop(guard);
    assert_eq!(locks.stats().lost, 1);
}
