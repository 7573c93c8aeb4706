//! What no caller sees is counted, and the caller's result is the caller's.

use std::time::Duration;

use lock_core::{LockError, LockManager, Renew, distributed_lock};
use test_support::{RedisServer, eventually_async};

use super::connect;

const SOON: Duration = Duration::from_secs(5);

#[distributed_lock(name = "a", manager = locks)]
async fn takes_its_lock_away(locks: &LockManager, server: &RedisServer) -> Result<u8, LockError> {
    server.cli(&["DEL", "lock:a"]);
    Ok(7)
}

#[tokio::test]
async fn a_result_is_returned_although_the_release_failed_and_that_is_counted() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    assert_eq!(takes_its_lock_away(&locks, &server).await.unwrap(), 7);
    let ran = locks.lock("a").run(async |_held| {
        server.cli(&["DEL", "lock:a"]);
        8
    });
    assert_eq!(ran.await.unwrap(), 8);
    assert_eq!(locks.stats().releases_failed, 2);

    // With the guard in hand both are to be seen.
    let guard = locks.lock("a").acquire().await.unwrap();
    server.cli(&["DEL", "lock:a"]);
    assert!(matches!(guard.release().await, Err(LockError::Lost { .. })));
    assert_eq!(locks.stats().releases_failed, 2);
}

#[tokio::test]
async fn a_loss_is_counted_once() {
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
async fn renewals_without_an_answer_are_counted() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let every = Renew::Every(Duration::from_millis(20));
    let guard = locks.lock("a").renew(every).acquire().await.unwrap();
    server.kill9();
    eventually_async(SOON, async || locks.stats().renewals_failed > 1).await;
    assert!(!guard.is_lost(), "30 s are not over");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_ended_unseen_is_counted_at_the_release() {
    let locks = LockManager::in_memory();
    let guard = locks.lock("a").renew(Renew::Never).acquire().await.unwrap();
    tokio::time::advance(Duration::from_secs(31)).await;
    drop(guard);
    assert_eq!(locks.stats().lost, 1);
}
