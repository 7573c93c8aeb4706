//! What stands in the key of a lock that is asked for in another dialect.

use lock_core::{Dialect, LockError};
use test_support::RedisServer;
use test_support::fixtures::{KEY, NAME, SOON};
use tests::{SET_NX_PX, connect, shut_down};

use super::{OWNERS, connect_in, refusal};

/// In the year 2100.
const DEADLINE: &str = "4102444800000";
/// In the year 2020.
const PASSED: &str = "1577836800000";

/// The errors of a request, with and without waiting; and the key stays as it is.
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

async fn is_foreign(dialect: Dialect, setup: &[&str], says: &[&str]) {
    let error = acquire_error(dialect, setup).await;
    assert!(
        matches!(error, LockError::ForeignKey { .. }),
        "{dialect}: {error}"
    );
    let text = error.to_string();
    for part in says {
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
async fn a_deadline_is_no_owner() {
    for dialect in OWNERS {
        let says = ["deadline", "expects an owner", "never taken over"];
        is_foreign(dialect, &["SET", KEY, DEADLINE], &says).await;
        is_foreign(dialect, &["SET", KEY, DEADLINE, "PX", "60000"], &says).await;
        // Its holder died long ago, and still only its own kind may take it over.
        is_foreign(dialect, &["SET", KEY, PASSED], &says).await;
    }
    is_foreign(Dialect::Native, &["SET", KEY, DEADLINE], &["deadline"]).await;
}

/// An owner may look like a time that has passed: some write the time at which they asked.
#[tokio::test]
async fn an_owner_may_be_a_time() {
    for dialect in [SET_NX_PX, Dialect::SetnxExpire, Dialect::Native] {
        is_waited_for(dialect, &["SET", KEY, PASSED, "PX", "60000"]).await;
    }
}

#[tokio::test]
async fn an_owner_is_no_deadline() {
    let says = ["the owner `me`", "expects a deadline", "never taken over"];
    let dialect = Dialect::DeadlineGetset;
    is_foreign(dialect, &["SET", KEY, "me"], &says).await;
    is_foreign(dialect, &["SET", KEY, "me", "PX", "60000"], &says).await;
    is_foreign(dialect, &["SET", KEY, "12", "PX", "60000"], &["`12`"]).await;
}

#[tokio::test]
async fn other_types_are_no_lock() {
    for &dialect in Dialect::ALL {
        is_foreign(dialect, &["HSET", KEY, "id:1", "1"], &["hash", "Redisson"]).await;
    }
    for dialect in [SET_NX_PX, Dialect::LuaSetnxExpire, Dialect::DeadlineGetset] {
        is_foreign(dialect, &["RPUSH", KEY, "x"], &["a list"]).await;
        is_foreign(dialect, &["SADD", KEY, "x"], &["a set"]).await;
    }
}

/// Only the dialect in which that happens gives it an expiry.
#[tokio::test]
async fn an_owner_without_expiry_is_left_alone() {
    for dialect in [SET_NX_PX, Dialect::LuaSetnxExpire, Dialect::Native] {
        let says = ["`me` without an expiry", "SetnxExpire"];
        is_foreign(dialect, &["SET", KEY, "me"], &says).await;
    }
}

/// Deadlines of this library have an expiry, so that the native dialect waits for them; and they
/// for native locks.
#[tokio::test]
async fn deadlines_of_ours_and_native_locks_respect_each_other() {
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
