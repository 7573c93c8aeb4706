//! Keys that are no locks.

use std::time::Instant;

use lock_core::{Kind, LockError};
use test_support::fixtures::{COUNTER, KEY, NAME, QUEUE, SOON, all_keys, ms, time_to_expiry};
use test_support::{RedisServer, eventually_async};
use tests::in_time;

use super::{assert_at_rest, assert_says, connect, errors};

/// The holders of [`NAME`] while it is shared.
const HOLDERS: &str = "{lock:job}:h";

const SHARED: [Kind; 3] = [
    Kind::Read,
    Kind::Permits { of: 4, weight: 1 },
    Kind::Permits { of: 4, weight: 3 },
];

/// Checks that the error names the key, its content and what to do, and that the key does not
/// change.
async fn assert_foreign_key(setup: &[&[&str]], found: &str) {
    assert_foreign_to(Kind::Exclusive, setup, found).await;
}

/// As [`assert_foreign_key`], for a lock of this kind.
async fn assert_foreign_to(kind: Kind, setup: &[&[&str]], found: &str) {
    let server = RedisServer::start();
    for command in setup {
        assert_eq!(server.cli(command).error(), None, "{command:?}");
    }
    let before: Vec<_> = all_keys(&server);
    let dump = |key: &String| server.cli(&["DUMP", key]);
    let dumps: Vec<_> = before.iter().map(dump).collect();
    let locks = connect(&server).await;
    for error in errors(locks.lock(NAME).kind(kind)).await {
        assert!(matches!(error, LockError::ForeignKey { .. }), "{error}");
        assert_says(&error, &[KEY, found, "another name or prefix"]);
    }
    let left: Vec<_> = before.iter().map(String::as_str).collect();
    assert_at_rest(&server, locks, &left).await;
    assert_eq!(before.iter().map(dump).collect::<Vec<_>>(), dumps);
}

#[tokio::test]
async fn list_is_a_foreign_key() {
    assert_foreign_key(&[&["RPUSH", KEY, "x"]], "a list").await;
}

#[tokio::test]
async fn other_types_are_foreign_keys() {
    assert_foreign_key(&[&["HSET", KEY, "f", "v"]], "a hash").await;
    assert_foreign_key(&[&["SADD", KEY, "x"]], "a set").await;
    assert_foreign_key(&[&["ZADD", KEY, "1", "x"]], "a zset").await;
    assert_foreign_key(&[&["XADD", KEY, "*", "f", "v"]], "a stream").await;
    let expires: [&[&str]; 2] = [&["RPUSH", KEY, "x"], &["EXPIRE", KEY, "60"]];
    assert_foreign_key(&expires, "a list").await;
}

/// The error comes after a moment, because a client that sends `SETNX` and `EXPIRE` needs time for
/// both.
#[tokio::test]
async fn string_without_expiry_is_a_foreign_key() {
    assert_foreign_key(&[&["SET", KEY, "settings"]], "a value without an expiry").await;
    assert_foreign_key(&[&["SET", KEY, ""]], "without an expiry").await;
    assert_foreign_key(&[&["SET", KEY, "\u{1b}[31m\0"]], "without an expiry").await;
    let server = RedisServer::start();
    server.cli(&["SET", KEY, "settings"]);
    let locks = connect(&server).await;
    let started = Instant::now();
    let error = in_time(ms(200), locks.lock(NAME).try_acquire()).await;
    let (took, error) = (started.elapsed(), error.unwrap_err());
    assert!(matches!(error, LockError::ForeignKey { .. }), "{error}");
    assert!(took >= ms(200), "{took:?}");
}

#[tokio::test]
async fn queue_of_another_type_is_a_foreign_key() {
    assert_foreign_key(&[&["SET", QUEUE, "x"]], "companion").await;
    assert_foreign_key(&[&["RPUSH", QUEUE, "x"]], "companion").await;
}

#[tokio::test]
async fn counter_of_another_type_is_a_foreign_key() {
    assert_foreign_key(&[&["RPUSH", COUNTER, "x"]], "companion").await;
    assert_foreign_key(&[&["SET", COUNTER, "x"]], "companion").await;
}

/// Near the maximum, the counter would end for everyone after a few more tokens. It stays as it is.
#[tokio::test]
async fn counter_beyond_any_time_is_a_foreign_key() {
    for garbage in ["9223372036854775807", "9223372036854775000"] {
        let set = ["SET", COUNTER, garbage];
        let server = RedisServer::start();
        server.cli(&set);
        let locks = connect(&server).await;
        for kind in [Kind::Exclusive, Kind::Read] {
            let error = locks.lock(NAME).kind(kind).try_acquire().await;
            let error = error.unwrap_err();
            assert!(matches!(error, LockError::ForeignKey { .. }), "{error}");
            assert!(error.to_string().contains(COUNTER), "{error}");
            assert!(error.to_string().contains("delete"), "{error}");
            assert_eq!(server.cli(&["GET", COUNTER]).text(), garbage);
        }
        assert_at_rest(&server, locks, &[COUNTER]).await;
    }
}

/// The release reports companion keys that another client overwrote, and the key is free.
#[tokio::test]
async fn release_reports_companion_keys_overwritten_by_others() {
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

/// The check comes before the first write: neither the key nor the counter is made.
#[tokio::test]
async fn holders_of_another_type_are_a_foreign_key() {
    for kind in SHARED {
        for setup in [
            &["SET", HOLDERS, "x"][..],
            &["RPUSH", HOLDERS, "x"],
            &["SADD", HOLDERS, "x"],
        ] {
            assert_foreign_to(kind, &[setup], "holders `:h`").await;
        }
    }
    // An exclusive lock has no holders there.
    let server = RedisServer::start();
    let locks = connect(&server).await;
    server.cli(&["SET", HOLDERS, "x"]);
    let held = locks.lock(NAME).acquire().await.unwrap();
    held.release().await.unwrap();
    assert_at_rest(&server, locks, &[COUNTER, HOLDERS]).await;
}

/// Another client overwrites the holders while a reader holds the lock. No other reader joins it, and the key
/// expires by itself.
#[tokio::test]
async fn holders_overwritten_by_others_are_a_foreign_key() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let read = || locks.lock(NAME).read().ttl(ms(1_000));
    let reader = read().acquire().await.unwrap();
    server.cli(&["DEL", HOLDERS]);
    server.cli(&["SET", HOLDERS, "x", "PX", "60000"]);
    let value = server.cli(&["GET", KEY]);
    let left = time_to_expiry(&server, KEY);
    for request in [read(), locks.lock(NAME).write(), read().permits(2)] {
        for request in [request.clone(), request.wait(ms(50))] {
            let error = request.acquire().await.unwrap_err();
            assert!(matches!(error, LockError::ForeignKey { .. }), "{error}");
            assert_says(&error, &[KEY, "holders `:h`", "another name or prefix"]);
        }
    }
    assert_eq!(server.cli(&["GET", KEY]), value);
    assert!(time_to_expiry(&server, KEY) <= left);
    let error = reader.renew().await.unwrap_err();
    assert!(matches!(error, LockError::ForeignKey { .. }), "{error}");
    let error = reader.release().await.unwrap_err();
    assert!(matches!(error, LockError::ForeignKey { .. }), "{error}");
    assert_eq!(server.cli(&["GET", HOLDERS]).text(), "x");
    eventually_async(SOON, async || all_keys(&server) == [COUNTER, HOLDERS]).await;
}
