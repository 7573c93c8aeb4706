//! Values of a shared lock that are not what this library writes.

use lock_core::{Kind, LockError, LockManager};
use test_support::fixtures::{COUNTER, KEY, NAME, SLACK, SOON, all_keys, ms, time_to_expiry};
use test_support::{RedisServer, Stopwatch};
use tests::assert_nothing_left;

use super::HOLDERS;
use crate::connect;

/// Without a group, a token, a time or a label, or with one that no version writes.
const BROKEN: [&str; 11] = [
    "lks:",
    "lks:r",
    "lks:r 12",
    "lks:r 12 99",
    "lks:z 12 99 web-1",
    "lks:0 12 99 web-1",
    "lks:10001 12 99 web-1",
    "lks:4 x 99 web-1",
    "lks:4 -12 99 web-1",
    "lks:4 12 soon web-1",
    // A token that no number of 64 bits holds.
    "lks:r 99999999999999999999 99 web-1",
];

const KINDS: [Kind; 3] = [
    Kind::Exclusive,
    Kind::Read,
    Kind::Permits { of: 4, weight: 1 },
];

async fn error_of(locks: &LockManager, kind: Kind) -> LockError {
    locks.lock(NAME).kind(kind).acquire().await.unwrap_err()
}

/// The lock counts as held by a holder that the client does not know. The error shows the whole value, and the
/// client does not change it.
#[tokio::test]
async fn broken_value_is_the_holder_for_each_kind() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    for value in BROKEN {
        server.cli(&["SET", KEY, value, "PX", "60000"]);
        for kind in KINDS {
            let error = error_of(&locks, kind).await;
            assert!(matches!(error, LockError::Contended { .. }), "{error}");
            let holder = error.holder().expect("the error shows the holder");
            assert_eq!(&*holder.label, "a client of another library");
            assert_eq!((holder.kind, holder.count), (Kind::Exclusive, 1));
            assert!(holder.held_for.is_none() && !holder.is_own());
            let text = error.to_string();
            assert!(
                text.contains(": a client of another library holds it for"),
                "{text}"
            );
        }
        let shown = locks.holder(NAME).await.unwrap();
        let shown = shown.expect("the key is there");
        assert_eq!(&*shown.label, "a client of another library");
        assert_eq!(shown.kind, Kind::Exclusive);
        assert!(shown.is_foreign() && shown.token.is_none());
        assert_eq!(server.cli(&["GET", KEY]).text(), value);
        assert!(time_to_expiry(&server, KEY) > ms(50_000));
        assert_eq!(all_keys(&server), [KEY]);
    }
}

/// A holder of another version of the library notifies its waiters, so the waiter polls at the end of the lease.
#[tokio::test]
async fn waiter_gets_the_lock_when_a_broken_value_expires() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    for (value, kind) in BROKEN.into_iter().zip(KINDS.into_iter().cycle()) {
        let lease = ms(200);
        server.cli(&["SET", KEY, value, "PX", "200"]);
        let set = Stopwatch::start();
        let held = locks.lock(NAME).kind(kind).wait(SOON).acquire().await;
        let took = set.elapsed();
        assert!(
            took < lease + SLACK + set.stalled(),
            "`{value}`, {kind}: {took:?}"
        );
        assert!(took + ms(20) > lease, "`{value}`, {kind}: {took:?}");
        held.unwrap().release().await.unwrap();
    }
    assert_nothing_left(&server, &locks).await;
}

#[tokio::test]
async fn broken_value_without_an_expiry_is_a_foreign_key() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    for value in ["lks:z 12 99 web-1", "lks:4 x 99 web-1", "lks:r 12 99"] {
        server.cli(&["SET", KEY, value]);
        for kind in KINDS {
            let error = error_of(&locks, kind).await;
            assert!(matches!(error, LockError::ForeignKey { .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("a value without an expiry"), "{text}");
            assert!(!text.contains(value), "{text}");
        }
        assert_eq!(server.cli(&["GET", KEY]).text(), value);
        assert_eq!(all_keys(&server), [KEY]);
    }
}

/// A group without members has no holder, whatever its label is.
#[tokio::test]
async fn group_without_members_is_free() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    for value in ["lks:r 12 99 ", "lks:4 12 99 web 1", "lks:r 12 99 web-1"] {
        for kind in KINDS {
            server.cli(&["SET", KEY, value, "PX", "60000"]);
            let held = locks.lock(NAME).kind(kind).try_acquire().await.unwrap();
            let held = held.unwrap_or_else(|| panic!("`{value}`, {kind}: the lock is free"));
            assert_ne!(server.cli(&["GET", KEY]).text(), value);
            held.release().await.unwrap();
            assert_eq!(all_keys(&server), [COUNTER]);
        }
    }
}

/// A group whose founder has an empty label. The members are alive, so its readers and the caller share the lock.
#[tokio::test]
async fn reader_joins_a_group_without_a_label() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let member = "6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 1 ";
    server.cli(&["ZADD", HOLDERS, "99999999999999", member]);
    server.cli(&["SET", KEY, "lks:r 12 99 ", "PX", "60000"]);
    let held = locks.lock(NAME).read().try_acquire().await.unwrap();
    let held = held.expect("readers share the lock");
    assert_eq!(tests::fencing_token(&held), 12);
    held.release().await.unwrap();
    let error = error_of(&locks, Kind::Exclusive).await;
    let holder = error.holder().expect("the error shows the holder");
    assert_eq!((&*holder.label, holder.count), ("", 1));
    assert!(
        error.to_string().contains("held for reading by 1"),
        "{error}"
    );
}
