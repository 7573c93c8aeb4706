//! What is guaranteed of a call, when it runs.

use std::time::Duration;

use lock_core::{LockError, LockManager, distributed_lock};
use test_support::RedisServer;
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
async fn a_failed_release_keeps_the_result_and_is_counted() {
    let server = RedisServer::start();
    let timeout = Duration::from_millis(300);
    let locks = LockManager::builder().command_timeout(timeout);
    let locks = locks.connect(&server.url()).await.expect("it runs");
    let answer = robbed_at_its_end(&locks, &server).await;
    assert!(matches!(answer, Ok(1)), "{answer:?}");
    assert_eq!(locks.stats().releases_failed, 1);

    let begun = Instant::now();
    let answer = frozen_at_its_end(&locks, &server).await;
    let took = begun.elapsed();
    server.cont();
    assert!(matches!(answer, Ok(1)), "{answer:?}");
    assert_eq!(locks.stats().releases_failed, 2);
    // The acquire takes a moment, the release the command timeout.
    assert!(took < timeout + SECOND, "{took:?}");
}

#[distributed_lock(name = "x", ttl = "100ms", renew = never, manager = locks)]
async fn blocks(locks: &LockManager) -> Result<u8, LockError> {
    // As a computation would: nothing sees the lease end before the body is done.
    std::thread::sleep(Duration::from_millis(200));
    Ok(1)
}

#[tokio::test]
async fn a_body_that_finishes_keeps_its_result_though_the_lease_ran_out_unseen() {
    let server = RedisServer::start();
    let locks = LockManager::connect(&server.url()).await.expect("it runs");
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
async fn branches_of_a_join_wait_for_each_other() {
    let locks = LockManager::in_memory();
    let begun = Instant::now();
    let (one, two) = tokio::join!(takes_a_second(&locks), takes_a_second(&locks));
    let after = |end: Result<Instant, LockError>| end.expect("its turn").duration_since(begun);
    assert_eq!((after(one), after(two)), (SECOND, 2 * SECOND));
}

#[distributed_lock(name = "x", wait = "1s", manager = locks)]
async fn spawns_itself(locks: LockManager) -> Result<bool, LockError> {
    let other = tokio::spawn(async move { locks.lock("x").wait(SECOND).acquire().await });
    let error = other.await.expect("no panic").expect_err("held meanwhile");
    Ok(matches!(error, LockError::Timeout { .. }))
}

#[tokio::test(start_paused = true)]
async fn a_spawned_task_is_bounded_by_its_wait() {
    let locks = LockManager::in_memory();
    assert!(spawns_itself(locks).await.expect("free"));
}

#[distributed_lock(name = "x", manager = locks)]
async fn asks_in_all_ways(locks: &LockManager) -> Result<(), LockError> {
    let at_once = locks.lock("x").acquire().await;
    assert!(matches!(at_once, Err(LockError::WouldDeadlock { .. })));
    let waiting = locks.lock("x").wait(60 * SECOND).acquire().await;
    assert!(matches!(waiting, Err(LockError::WouldDeadlock { .. })));
    assert!(locks.lock("x").try_acquire().await?.is_none());
    // Another manager is another place: the same name is another lock there.
    drop(LockManager::in_memory().lock("x").acquire().await?);
    Ok(())
}

#[tokio::test]
async fn the_same_lock_inside_its_body_is_an_error_at_once() {
    let begun = std::time::Instant::now();
    let locks = LockManager::in_memory();
    asks_in_all_ways(&locks).await.expect("free");
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
async fn a_call_is_two_commands() {
    let server = RedisServer::start();
    let locks = LockManager::connect(&server.url()).await.expect("it runs");
    confirmed(&locks).await.expect("free");
    let monitor = server.monitor();
    for _ in 0..5 {
        confirmed(&locks).await.expect("free");
    }
    in_background(&locks).await.expect("free");
    // What is released in the background was sent when this returns.
    locks.shutdown().await.expect("nothing is left");
    assert_eq!(monitor.stop().client_commands_about("two"), 12);
}
