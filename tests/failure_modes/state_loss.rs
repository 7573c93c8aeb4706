//! The server loses data. Exclusion is not guaranteed then. The report of the loss and growing
//! tokens are.

use std::fs::{self, File};
use std::path::PathBuf;

use lock_core::error::BackendErrorKind;
use lock_core::{LockError, LockGuard, LockManager, Renew};
use test_support::fixtures::{COUNTER, KEY, NAME, NOTICE, SOON, exists, ms};
use test_support::{RedisServer, Stopwatch, eventually_async};
use tests::{Trace, assert_nothing_left, connect, fencing_token, lost_in_time};

use super::grants;

/// Checks that the next grant has a greater token than the last, and that the former holder does
/// not disturb the next one.
async fn assert_next_token_is_greater(last: u64, former: LockGuard, locks: &LockManager) {
    let next = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
    assert!(
        fencing_token(&next) > last,
        "{} after {last}",
        fencing_token(&next)
    );
    assert!(matches!(
        former.release().await,
        Err(LockError::Lost { .. })
    ));
    next.renew()
        .await
        .expect("the former holder ended the lease");
    next.release().await.unwrap();
}

#[tokio::test]
async fn f23_restart_without_persistence_reports_the_loss() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).ttl(ms(900)).acquire().await.unwrap();
    server.restart();
    assert!(!exists(&server, KEY));
    lost_in_time(&held).await;
    assert_next_token_is_greater(fencing_token(&held), held, &locks).await;
    assert_nothing_left(&server, &locks).await;
}

/// The released lock is back, and the counter has its old value.
#[tokio::test]
async fn f24_old_snapshot_costs_one_ttl_and_tokens_grow() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let ttl = ms(2_500);
    let started = Stopwatch::start();
    let request = locks.lock(NAME).ttl(ttl).renew(Renew::Never);
    let held = request.acquire().await.unwrap();
    server.cli(&["SAVE"]);
    held.release().await.unwrap();
    let mut last = 0;
    for _ in 0..5 {
        let held = locks.lock(NAME).acquire().await.unwrap();
        last = fencing_token(&held);
        held.release().await.unwrap();
    }
    server.restart();
    assert!(exists(&server, KEY), "the snapshot has no released lock");
    let counter = server.cli(&["GET", COUNTER]).integer();
    assert!(
        counter.unsigned_abs() < last,
        "the counter is not the old one"
    );
    let held = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
    let took = started.elapsed();
    assert!(took <= ttl + NOTICE + started.stalled(), "{took:?}");
    assert!(
        fencing_token(&held) > last,
        "{} after {last}",
        fencing_token(&held)
    );
    held.release().await.unwrap();
    assert_nothing_left(&server, &locks).await;
}

/// A crash that loses the end of the file. A kill alone does not lose it.
#[tokio::test]
async fn f25_truncated_append_only_file_reports_the_loss_and_tokens_grow() {
    let server = RedisServer::options()
        .args(["--appendonly", "yes"])
        .args(["--appendfsync", "always"])
        .start();
    let locks = connect(&server).await;
    for _ in 0..3 {
        let held = locks.lock(NAME).acquire().await.unwrap();
        held.release().await.unwrap();
    }
    // No renewal, so that the grant is the last write in the file.
    let request = locks.lock(NAME).ttl(ms(30_000)).renew(Renew::Never);
    let held = request.acquire().await.unwrap();
    let last = fencing_token(&held);
    server.kill9();
    let file = append_only_file(&server);
    let length = file.metadata().unwrap().len();
    file.set_len(length - 8).unwrap();
    server.restart();
    assert!(!exists(&server, KEY), "the grant is still in the file");
    let counter = server.cli(&["GET", COUNTER]).integer();
    assert_eq!(
        counter.unsigned_abs(),
        last - 1,
        "the counter is not the old one"
    );
    // The first renewal may still use the connection to the old process.
    while let Err(LockError::Backend(error)) = held.renew().await {
        assert_eq!(error.kind(), BackendErrorKind::Unreachable);
    }
    assert!(held.is_lost());
    assert_next_token_is_greater(last, held, &locks).await;
    assert_nothing_left(&server, &locks).await;
}

fn append_only_file(server: &RedisServer) -> File {
    let folder = server.directory().join("appendonlydir");
    let files = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let is_increment = |path: &PathBuf| path.to_string_lossy().ends_with(".incr.aof");
    let path = files.into_iter().find(is_increment).unwrap();
    File::options().write(true).open(path).unwrap()
}

/// `connect` logs a warning for a server that evicts keys. The holder of an evicted lock learns of
/// the loss.
#[tokio::test]
async fn f28_eviction_logs_a_warning_and_reports_the_loss() {
    let server = RedisServer::start();
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
    server.cli(&["CONFIG", "SET", "maxmemory", "100mb"]);
    let (trace, _tracing) = Trace::begin();
    let locks = connect(&server).await;
    trace.assert_says("lock.eviction_policy");
    let held = locks.lock(NAME).ttl(ms(900)).acquire().await.unwrap();
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    // The server evicts keys before it executes a command.
    eventually_async(SOON, async || !exists(&server, KEY)).await;
    lost_in_time(&held).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_next_token_is_greater(fencing_token(&held), held, &locks).await;
    assert_nothing_left(&server, &locks).await;
}

/// A renewal that finds no key reports the loss, and creates no key.
#[tokio::test]
async fn f29_deleted_lock_is_reported_and_not_created_again() {
    let deletions: [&[&str]; 3] = [&["DEL", KEY], &["FLUSHALL"], &["SWAPDB", "0", "1"]];
    for command in deletions {
        let server = RedisServer::start();
        let locks = connect(&server).await;
        let held = locks.lock(NAME).ttl(ms(600)).acquire().await.unwrap();
        let monitor = server.monitor();
        assert_eq!(server.cli(command).error(), None);
        lost_in_time(&held).await;
        assert!(!exists(&server, KEY), "{command:?}");
        assert_eq!(grants(&monitor.stop()), 0);
        assert_next_token_is_greater(fencing_token(&held), held, &locks).await;
        assert_nothing_left(&server, &locks).await;
    }
}
