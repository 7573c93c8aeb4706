//! Keys that are no lock.

use std::time::Instant;

use lock_core::LockError;
use test_support::fixtures::{COUNTER, KEY, NAME, QUEUE, SOON, all_keys, ms};
use test_support::{RedisServer, eventually_async};

use super::{assert_at_rest, assert_says, connect, errors};

/// The key is named, what it holds, and what to do; and it stays as it is.
async fn foreign(setup: &[&[&str]], found: &str) {
    let server = RedisServer::start();
    for command in setup {
        assert_eq!(server.cli(command).error(), None, "{command:?}");
    }
    let before: Vec<_> = all_keys(&server);
    let dump = |key: &String| server.cli(&["DUMP", key]);
    let dumps: Vec<_> = before.iter().map(dump).collect();
    let locks = connect(&server).await;
    for error in errors(locks.lock(NAME)).await {
        assert!(matches!(error, LockError::ForeignKey { .. }), "{error}");
        assert_says(&error, &[KEY, found, "another name or prefix"]);
    }
    let left: Vec<_> = before.iter().map(String::as_str).collect();
    assert_at_rest(&server, locks, &left).await;
    assert_eq!(before.iter().map(dump).collect::<Vec<_>>(), dumps);
}

#[tokio::test]
async fn a_list() {
    foreign(&[&["RPUSH", KEY, "x"]], "a list").await;
}

#[tokio::test]
async fn other_types() {
    foreign(&[&["HSET", KEY, "f", "v"]], "a hash").await;
    foreign(&[&["SADD", KEY, "x"]], "a set").await;
    foreign(&[&["ZADD", KEY, "1", "x"]], "a zset").await;
    foreign(&[&["XADD", KEY, "*", "f", "v"]], "a stream").await;
    let expires: [&[&str]; 2] = [&["RPUSH", KEY, "x"], &["EXPIRE", KEY, "60"]];
    foreign(&expires, "a list").await;
}

/// Later than at once: a client that writes SETNX and EXPIRE is given the time for it.
#[tokio::test]
async fn a_string_without_expiry() {
    foreign(&[&["SET", KEY, "settings"]], "`settings` without an expiry").await;
    foreign(&[&["SET", KEY, ""]], "without an expiry").await;
    foreign(&[&["SET", KEY, "\u{1b}[31m\0"]], "without an expiry").await;
    let server = RedisServer::start();
    server.cli(&["SET", KEY, "settings"]);
    let locks = connect(&server).await;
    let asked = Instant::now();
    let error = locks.lock(NAME).try_acquire().await.unwrap_err();
    let took = asked.elapsed();
    assert!(matches!(error, LockError::ForeignKey { .. }), "{error}");
    assert!(took >= ms(200), "{took:?}");
    assert!(took < ms(450), "{took:?}");
}

#[tokio::test]
async fn a_queue_of_another_type() {
    foreign(&[&["SET", QUEUE, "x"]], "companion").await;
    foreign(&[&["RPUSH", QUEUE, "x"]], "companion").await;
}

#[tokio::test]
async fn a_counter_of_another_type() {
    foreign(&[&["RPUSH", COUNTER, "x"]], "companion").await;
    foreign(&[&["SET", COUNTER, "x"]], "companion").await;
}

/// What breaks while the lock is held is reported by the release, and the key is free.
#[tokio::test]
async fn companions_that_break_while_the_lock_is_held() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    server.cli(&["SET", QUEUE, "x"]);
    let error = held.release().await.unwrap_err();
    assert!(matches!(error, LockError::ForeignKey { .. }), "{error}");
    assert_at_rest(&server, locks, &[COUNTER, QUEUE]).await;

    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    let waiting = tokio::spawn(locks.lock(NAME).wait(SOON).acquire());
    eventually_async(SOON, async || server.cli(&["ZCARD", QUEUE]).integer() == 1).await;
    server.cli(&["DEL", COUNTER]);
    server.cli(&["RPUSH", COUNTER, "x"]);
    drop(held);
    let error = tokio::time::timeout(SOON, waiting).await;
    let error = error.unwrap().unwrap().unwrap_err();
    assert!(matches!(error, LockError::ForeignKey { .. }), "{error}");
    assert_at_rest(&server, locks, &[COUNTER]).await;
}
