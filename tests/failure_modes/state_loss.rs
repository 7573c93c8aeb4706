//! The server loses what it knew. Exclusion is not guaranteed then; the report of the loss is, and
//! that tokens go on growing.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Instant;

use lock_core::{BackendErrorKind, LockError, LockGuard, LockManager, Renew};
use test_support::fixtures::{COUNTER, KEY, NAME, NOTICE, SOON, exists, ms};
use test_support::{RedisServer, eventually_async};
use tests::{Trace, assert_nothing_left, connect, fencing_token, lost_in_time};

use super::grants;

/// The next grant, which stands above the last, and whose holder is not disturbed by the former.
async fn next_above(last: u64, former: LockGuard, locks: &LockManager) {
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
    next.renew().await.expect("the former took it away");
    next.release().await.unwrap();
}

#[tokio::test]
async fn f23_a_restart_without_persistence_is_told() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).ttl(ms(900)).acquire().await.unwrap();
    server.restart();
    assert!(!exists(&server, KEY));
    lost_in_time(&held).await;
    next_above(fencing_token(&held), held, &locks).await;
    assert_nothing_left(&server, &locks).await;
}

/// The lock that was released is back and the counter is that of then.
#[tokio::test]
async fn f24_an_old_snapshot_costs_a_ttl_and_no_token() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let ttl = ms(2_500);
    let asked = Instant::now();
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
    assert!(exists(&server, KEY), "the released lock is not back");
    let counter = server.cli(&["GET", COUNTER]).integer();
    assert!(counter.unsigned_abs() < last, "the counter is not back");
    let held = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
    let took = asked.elapsed();
    assert!(took <= ttl + NOTICE, "{took:?}");
    assert!(
        fencing_token(&held) > last,
        "{} after {last}",
        fencing_token(&held)
    );
    held.release().await.unwrap();
    assert_nothing_left(&server, &locks).await;
}

/// A crash that cost the end of the file, which a kill alone does not.
#[tokio::test]
async fn f25_a_truncated_append_only_file_is_told_and_costs_no_token() {
    let server = RedisServer::options()
        .args(["--appendonly", "yes"])
        .args(["--appendfsync", "always"])
        .start();
    let locks = connect(&server).await;
    for _ in 0..3 {
        let held = locks.lock(NAME).acquire().await.unwrap();
        held.release().await.unwrap();
    }
    // Not renewed, so that the grant is the last that was written.
    let request = locks.lock(NAME).ttl(ms(30_000)).renew(Renew::Never);
    let held = request.acquire().await.unwrap();
    let last = fencing_token(&held);
    server.kill9();
    let file = append_only_file(&server);
    let length = file.metadata().unwrap().len();
    file.set_len(length - 8).unwrap();
    server.restart();
    assert!(!exists(&server, KEY), "the grant was not cut off");
    let counter = server.cli(&["GET", COUNTER]).integer();
    assert_eq!(counter.unsigned_abs(), last - 1, "the counter is not back");
    // The first may still find the connection of before.
    while let Err(LockError::Backend(error)) = held.renew().await {
        assert_eq!(error.kind(), BackendErrorKind::Unreachable);
    }
    assert!(held.is_lost());
    next_above(last, held, &locks).await;
    assert_nothing_left(&server, &locks).await;
}

fn append_only_file(server: &RedisServer) -> File {
    let folder = server.directory().join("appendonlydir");
    let files = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let is_increment = |path: &PathBuf| path.to_string_lossy().ends_with(".incr.aof");
    let path = files.into_iter().find(is_increment).unwrap();
    File::options().write(true).open(path).unwrap()
}

/// Connecting to a server that deletes keys to free memory logs a warning; the loss of a deleted
/// lock is reported to its holder.
#[tokio::test]
async fn f28_eviction_is_warned_of_and_told() {
    let server = RedisServer::start();
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
    server.cli(&["CONFIG", "SET", "maxmemory", "100mb"]);
    let (trace, _tracing) = Trace::begin();
    let locks = connect(&server).await;
    trace.assert_says("may evict locks");
    let held = locks.lock(NAME).ttl(ms(900)).acquire().await.unwrap();
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    // Each command makes room before it is carried out.
    eventually_async(SOON, async || !exists(&server, KEY)).await;
    lost_in_time(&held).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    next_above(fencing_token(&held), held, &locks).await;
    assert_nothing_left(&server, &locks).await;
}

/// A renewal that finds nothing tells so, and makes nothing.
#[tokio::test]
async fn f29_a_lock_that_an_operator_took_away_is_told_and_not_made_again() {
    let taken_away: [&[&str]; 3] = [&["DEL", KEY], &["FLUSHALL"], &["SWAPDB", "0", "1"]];
    for command in taken_away {
        let server = RedisServer::start();
        let locks = connect(&server).await;
        let held = locks.lock(NAME).ttl(ms(600)).acquire().await.unwrap();
        let monitor = server.monitor();
        assert_eq!(server.cli(command).error(), None);
        lost_in_time(&held).await;
        assert!(!exists(&server, KEY), "{command:?}");
        assert_eq!(grants(&monitor.stop()), 0);
        next_above(fencing_token(&held), held, &locks).await;
        assert_nothing_left(&server, &locks).await;
    }
}
