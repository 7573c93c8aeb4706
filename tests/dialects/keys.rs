//! The values that a request in another dialect finds in the key of a lock.

use lock_core::LockError;
use lock_core::dialect::Dialect;
use test_support::RedisServer;
use test_support::fixtures::{KEY, NAME, SOON};
use tests::{SET_NX_PX, connect, shut_down, supported_dialects};

use super::{OWNERS, connect_in, refusal};

/// In the year 2100.
const DEADLINE: &str = "4102444800000";
/// In the year 2020.
const PASSED: &str = "1577836800000";

/// Returns the error of a request, with and without `wait`; the key does not change.
async fn acquire_error(dialect: Dialect, setup: &[&str]) -> LockError {
    let server = RedisServer::start();
    assert_eq!(server.cli(setup).error(), None, "{setup:?}");
    let before = server.cli(&["DUMP", KEY]);
    let locks = connect_in(dialect, &server.url()).await;
    let error = refusal(&locks).await;
    if !error.is_contended() {
        let waited = locks.lock(NAME).wait(SOON).acquire().await.unwrap_err();
        assert_eq!(waited.to_string(), error.to_string());
    }
    shut_down(&locks).await;
    assert_eq!(server.cli(&["DUMP", KEY]), before, "{dialect}: {setup:?}");
    error
}

async fn is_foreign(dialect: Dialect, setup: &[&str], parts: &[&str]) {
    let error = acquire_error(dialect, setup).await;
    assert!(
        matches!(error, LockError::ForeignKey { .. }),
        "{dialect}: {error}"
    );
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "`{text}` does not say `{part}`");
    }
    assert!(text.contains("use another name or prefix"), "{text}");
}

async fn is_waited_for(dialect: Dialect, setup: &[&str]) {
    let error = acquire_error(dialect, setup).await;
    assert!(
        matches!(error, LockError::Contended { .. }),
        "{dialect}: {error}"
    );
}

#[tokio::test]
async fn owner_dialect_refuses_a_deadline() {
    for dialect in OWNERS {
        let parts = ["deadline", "expects an owner", "never taken over"];
        is_foreign(dialect, &["SET", KEY, DEADLINE], &parts).await;
        is_foreign(dialect, &["SET", KEY, DEADLINE, "PX", "60000"], &parts).await;
        // Its holder died long ago, but only clients of the same dialect may take the lock over.
        is_foreign(dialect, &["SET", KEY, PASSED], &parts).await;
    }
    is_foreign(Dialect::Native, &["SET", KEY, DEADLINE], &["deadline"]).await;
}

/// An owner may look like a passed time: some libraries write the time of the request.
#[tokio::test]
async fn owner_dialect_accepts_a_time_as_owner() {
    for dialect in [SET_NX_PX, Dialect::SetnxExpire, Dialect::Native] {
        is_waited_for(dialect, &["SET", KEY, PASSED, "PX", "60000"]).await;
    }
}

#[tokio::test]
async fn deadline_dialect_refuses_an_owner() {
    let parts = ["an owner where", "expects a deadline", "never taken over"];
    let dialect = Dialect::DeadlineGetset;
    is_foreign(dialect, &["SET", KEY, "me"], &parts).await;
    is_foreign(dialect, &["SET", KEY, "me", "PX", "60000"], &parts).await;
    is_foreign(dialect, &["SET", KEY, "12", "PX", "60000"], &parts).await;
}

#[tokio::test]
async fn every_dialect_refuses_other_key_types() {
    for dialect in supported_dialects() {
        is_foreign(dialect, &["HSET", KEY, "id:1", "1"], &["hash", "Redisson"]).await;
    }
    for dialect in [SET_NX_PX, Dialect::LuaSetnxExpire, Dialect::DeadlineGetset] {
        is_foreign(dialect, &["RPUSH", KEY, "x"], &["a list"]).await;
        is_foreign(dialect, &["SADD", KEY, "x"], &["a set"]).await;
    }
}

/// Only the dialect in which this can happen sets an expiry.
#[tokio::test]
async fn owner_without_expiry_is_not_changed() {
    for dialect in [SET_NX_PX, Dialect::LuaSetnxExpire, Dialect::Native] {
        let parts = ["a value without an expiry", "SetnxExpire"];
        is_foreign(dialect, &["SET", KEY, "me"], &parts).await;
    }
}

/// Deadlines of this library have an expiry. So the native dialect waits for them, and they wait
/// for native locks.
#[tokio::test]
async fn deadline_locks_and_native_locks_respect_each_other() {
    let server = RedisServer::start();
    let native = connect(&server).await;
    let deadlines = connect_in(Dialect::DeadlineGetset, &server.url()).await;
    for (holder, other) in [(&native, &deadlines), (&deadlines, &native)] {
        let held = holder.lock(NAME).acquire().await.unwrap();
        let error = refusal(other).await;
        assert!(matches!(error, LockError::Contended { .. }), "{error}");
        let waiting = tokio::spawn(other.lock(NAME).wait(SOON).acquire());
        held.release().await.unwrap();
        waiting.await.unwrap().unwrap().release().await.unwrap();
    }
}
