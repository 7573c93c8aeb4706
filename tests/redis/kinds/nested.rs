//! A task that acquires a lock inside the body of the same lock: what fits, and what would wait for itself.

use lock_core::{Kind, LockError, LockGuard, LockManager, LockSet};
use test_support::fixtures::{AT_ONCE, NAME, SOON};
use test_support::{RedisServer, completes_within};
use tests::{acquire_and_release, assert_nothing_left, granted, start_waiter};

use crate::connect;

const fn permits(of: u32, weight: u32) -> Kind {
    Kind::Permits { of, weight }
}

const ONE: Kind = permits(4, 1);
const TWO: Kind = permits(4, 2);
const THREE: Kind = permits(4, 3);

/// What a task may acquire inside the body of a lock of the first kind.
const NESTED: [(Kind, Kind, bool); 16] = [
    (Kind::Exclusive, Kind::Exclusive, false),
    (Kind::Exclusive, Kind::Read, false),
    (Kind::Exclusive, ONE, false),
    // A writer that waits between the two would stop both.
    (Kind::Read, Kind::Read, false),
    (Kind::Read, Kind::Exclusive, false),
    (Kind::Read, ONE, false),
    (ONE, Kind::Read, false),
    (ONE, Kind::Exclusive, false),
    (ONE, ONE, true),
    (ONE, THREE, true),
    (TWO, TWO, true),
    (TWO, THREE, false),
    (THREE, TWO, false),
    (permits(1, 1), permits(1, 1), false),
    // Holders with another number of permits never hold the key together with these.
    (ONE, permits(8, 1), false),
    (permits(8, 1), ONE, false),
];

/// Returns the kind of the lock that the call got. A call that would wait for itself returns `None` at once.
async fn nested(locks: &LockManager, inner: Kind) -> Option<Kind> {
    let request = || locks.lock(NAME).kind(inner).wait(SOON);
    let acquiring = completes_within(AT_ONCE, request().acquire());
    match acquiring.await.expect("the call does not wait") {
        Ok(held) => {
            held.release().await.unwrap();
            let ran = request().run(async |held| held.kind()).await;
            assert_eq!(ran.unwrap(), inner);
            let tried = request().try_acquire().await.unwrap();
            Some(tried.expect("the acquire succeeded").kind())
        }
        Err(error) => {
            assert!(
                matches!(&error, LockError::WouldDeadlock { key, .. } if &**key == "lock:job"),
                "{error}"
            );
            assert!(!error.is_contended() && !error.is_retryable());
            let ran = request().run(async |_| ()).await;
            assert!(matches!(ran, Err(LockError::WouldDeadlock { .. })));
            assert!(request().try_acquire().await.unwrap().is_none());
            None
        }
    }
}

#[tokio::test]
async fn only_permits_that_are_left_can_be_nested() {
    let server = RedisServer::start();
    for locks in [connect(&server).await, LockManager::in_memory()] {
        for (outer, inner, fits) in NESTED {
            let body = async |held: &LockGuard| {
                assert_eq!(held.kind(), outer);
                nested(&locks, inner).await
            };
            let outcome = locks.lock(NAME).kind(outer).wait(SOON).run(body).await;
            let expected = fits.then_some(inner);
            assert_eq!(outcome.unwrap(), expected, "{inner} inside {outer}");
        }
    }
}

/// Three permits of two bodies leave one of the four.
#[tokio::test]
async fn permits_of_all_bodies_around_are_counted() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let request = |kind| locks.lock(NAME).kind(kind).wait(SOON);
    let inner = async |_: &LockGuard| {
        let fits = nested(&locks, ONE).await;
        (fits, nested(&locks, TWO).await)
    };
    let outer = async |_: &LockGuard| request(TWO).run(inner).await;
    let outcome = request(ONE).run(outer).await.unwrap();
    assert_eq!(outcome.unwrap(), (Some(ONE), None));
    assert_nothing_left(&server, &locks).await;
}

/// The client knows the bodies of the task. So a call that would wait for itself does not get into the queue,
/// where it would keep others out.
#[tokio::test]
async fn nested_call_that_would_deadlock_sends_no_command() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let refused = [
        (Kind::Read, Kind::Read),
        (Kind::Read, Kind::Exclusive),
        (Kind::Exclusive, Kind::Read),
        (TWO, THREE),
    ];
    acquire_and_release(&locks).await;
    for (outer, inner) in refused {
        let body = async |_: &LockGuard| {
            let monitor = server.monitor();
            assert_eq!(nested(&locks, inner).await, None);
            monitor.stop().from_clients().count()
        };
        let sent = locks.lock(NAME).kind(outer).run(body).await.unwrap();
        assert_eq!(sent, 0, "{inner} inside {outer}");
    }
}

/// Why a reader cannot read again: it would wait for the writer, and the writer for its body.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_read_behind_a_waiting_writer_would_deadlock() {
    let server = RedisServer::start();
    let [locks, others] = [connect(&server).await, connect(&server).await];
    let body = async |_: &LockGuard| {
        let writer = start_waiter(&server, others.lock(NAME).write().wait(SOON), 1).await;
        assert_eq!(nested(&locks, Kind::Read).await, None);
        // Another task is no part of the body. It stands behind the writer, as every reader does.
        let reader = start_waiter(&server, locks.lock(NAME).read().wait(SOON), 2).await;
        assert!(!writer.is_finished());
        (writer, reader)
    };
    let waiting = locks.lock(NAME).read().wait(SOON).run(body).await;
    let (writer, reader) = waiting.unwrap();
    let writer = granted(AT_ONCE, writer).await;
    assert!(!reader.is_finished());
    writer.release().await.unwrap();
    granted(AT_ONCE, reader).await.release().await.unwrap();
    assert_nothing_left(&server, &locks).await;
}

/// A task that the body spawned reads beside it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn task_that_the_body_spawned_may_read_too() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let body = async |held: &LockGuard| {
        let other = tokio::spawn(locks.lock(NAME).read().acquire());
        let other = other.await.unwrap().unwrap();
        assert_eq!(other.fencing_token(), held.fencing_token());
        other.release().await.unwrap();
    };
    locks.lock(NAME).read().run(body).await.unwrap();
    assert_nothing_left(&server, &locks).await;
}

/// A set is refused as a whole when one of its locks would wait for the body around it.
#[tokio::test]
async fn set_of_permits_is_nested_as_far_as_they_last() {
    let server = RedisServer::start();
    for locks in [connect(&server).await, LockManager::in_memory()] {
        let set = |kind| locks.lock_all(["a", NAME, "z"]).kind(kind).wait(SOON);
        let single = |kind| locks.lock(NAME).kind(kind).wait(SOON);
        let inside = async |kind, busy: &str| match set(kind).acquire().await {
            Ok(set) => {
                assert_eq!(set.guards().len(), 3);
                set.release().await.unwrap();
                true
            }
            Err(error) => {
                assert!(
                    matches!(&error, LockError::WouldDeadlock { key, .. } if &**key == busy),
                    "{error}"
                );
                assert!(set(kind).try_acquire().await.unwrap().is_none());
                false
            }
        };
        let in_a_lock = async |_: &LockGuard| {
            let fits = [inside(TWO, "").await, inside(THREE, "lock:job").await];
            // None of the other locks of the refused set is held.
            let free = locks.lock("a").try_acquire().await.unwrap();
            free.expect("the lock is free").release().await.unwrap();
            fits
        };
        let fits = single(TWO).run(in_a_lock).await.unwrap();
        assert_eq!(fits, [true, false]);
        let in_a_set = async |_: &LockSet| {
            let sets = [inside(TWO, "").await, inside(THREE, "lock:a").await];
            (sets, nested(&locks, TWO).await, nested(&locks, THREE).await)
        };
        let (sets, two, three) = set(TWO).run(in_a_set).await.unwrap();
        assert_eq!((sets, two, three), ([true, false], Some(TWO), None));
    }
}
