//! The guarantees of a call at run time.

use std::time::Duration;

use lock_core::{LockError, LockManager, distributed_lock};
use test_support::{RedisServer, Stopwatch};
use tokio::time::{Instant, sleep};

const SECOND: Duration = Duration::from_secs(1);

#[distributed_lock(name = "x", manager = locks)]
async fn robbed_at_its_end(locks: &LockManager, server: &RedisServer) -> Result<u8, LockError> {
    server.cli(&["DEL", "lock:x"]);
    Ok(1)
}

#[distributed_lock(name = "x", ttl = "10s", manager = locks)]
async fn frozen_at_its_end(locks: &LockManager, server: &RedisServer) -> Result<u8, LockError> {
    server.stop();
    Ok(1)
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_release_keeps_the_result_and_is_counted() {
    let server = RedisServer::start();
    let timeout = Duration::from_millis(300);
    let locks = LockManager::builder().command_timeout(timeout);
    let locks = locks
        .connect(&server.url())
        .await
        .expect("the server is running");
    let answer = robbed_at_its_end(&locks, &server).await;
    assert!(matches!(answer, Ok(1)), "{answer:?}");
    assert_eq!(locks.stats().releases_failed, 1);

    let begun = Stopwatch::start();
    let answer = frozen_at_its_end(&locks, &server).await;
    let took = begun.elapsed();
    server.cont();
    assert!(matches!(answer, Ok(1)), "{answer:?}");
    assert_eq!(locks.stats().releases_failed, 2);
    // The acquire takes a moment, and the release takes the command timeout.
    assert!(took < timeout + SECOND + begun.stalled(), "{took:?}");
}

#[distributed_lock(name = "x", ttl = "100ms", renew = never, manager = locks)]
async fn blocks(locks: &LockManager) -> Result<u8, LockError> {
    // Blocks like a computation: the task cannot notice the end of the lease before the body
    // returns.
    std::thread::sleep(Duration::from_millis(200));
    Ok(1)
}

#[tokio::test]
async fn finished_body_keeps_its_result_after_an_unnoticed_loss() {
    let server = RedisServer::start();
    let locks = LockManager::connect(&server.url())
        .await
        .expect("the server is running");
    let answer = blocks(&locks).await;
    assert!(matches!(answer, Ok(1)), "{answer:?}");
    assert_eq!(locks.stats().releases_failed, 1);
}

#[distributed_lock(name = "x", wait = "10s", manager = locks)]
async fn takes_a_second(locks: &LockManager) -> Result<Instant, LockError> {
    sleep(SECOND).await;
    Ok(Instant::now())
}

#[tokio::test(start_paused = true)]
async fn branches_of_a_join_exclude_each_other() {
    let locks = LockManager::in_memory();
    let begun = Instant::now();
    let (one, two) = tokio::join!(takes_a_second(&locks), takes_a_second(&locks));
    let after = |end: Result<Instant, LockError>| {
        end.expect("each branch acquires the lock")
            .duration_since(begun)
    };
    assert_eq!((after(one), after(two)), (SECOND, 2 * SECOND));
}

#[distributed_lock(name = "x", wait = "1s", manager = locks)]
async fn spawns_itself(locks: LockManager) -> Result<bool, LockError> {
    let other = tokio::spawn(async move { locks.lock("x").wait(SECOND).acquire().await });
    let error = other.await.expect("no panic").expect_err("held meanwhile");
    Ok(matches!(error, LockError::Timeout { .. }))
}

#[tokio::test(start_paused = true)]
async fn spawned_task_times_out_after_its_wait() {
    let locks = LockManager::in_memory();
    assert!(spawns_itself(locks).await.expect("free"));
}

#[distributed_lock(name = "x", manager = locks)]
async fn acquires_in_all_ways(locks: &LockManager) -> Result<(), LockError> {
    let at_once = locks.lock("x").acquire().await;
    assert!(matches!(at_once, Err(LockError::WouldDeadlock { .. })));
    let waiting = locks.lock("x").wait(60 * SECOND).acquire().await;
    assert!(matches!(waiting, Err(LockError::WouldDeadlock { .. })));
    assert!(locks.lock("x").try_acquire().await?.is_none());
    // A lock of another manager: the same name is a different lock there.
    drop(LockManager::in_memory().lock("x").acquire().await?);
    Ok(())
}

#[tokio::test]
async fn acquiring_the_held_lock_in_the_body_fails_at_once() {
    let begun = std::time::Instant::now();
    let locks = LockManager::in_memory();
    acquires_in_all_ways(&locks).await.expect("free");
    assert!(begun.elapsed() < SECOND);
}

#[distributed_lock(name = "two", manager = locks)]
async fn confirmed(locks: &LockManager) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(name = "two", release = background, on_contended = |e| Err(e), manager = locks)]
async fn in_background(locks: &LockManager) -> Result<(), LockError> {
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn call_sends_two_commands() {
    let server = RedisServer::start();
    let locks = LockManager::connect(&server.url())
        .await
        .expect("the server is running");
    confirmed(&locks).await.expect("free");
    let monitor = server.monitor();
    for _ in 0..5 {
        confirmed(&locks).await.expect("free");
    }
    in_background(&locks).await.expect("free");
    // Background releases have been sent when this returns.
    locks.shutdown().await.expect("no cleanup is left");
    assert_eq!(monitor.stop().client_commands_about("lock:two"), 12);
}
