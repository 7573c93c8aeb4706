//! Reading one lock.

use std::time::{Duration, SystemTime};

use lock_core::admin::{LockInfo, LockStatus};
use lock_core::dialect::Dialect;
use lock_core::error::InvalidSetting;
use lock_core::{Holder, Kind, LockError, LockManager, LockRequest};
use test_support::RedisServer;
use test_support::eventually_async;
use test_support::fixtures::{KEY, LONG, NAME, QUEUE, SOON, ms, queue_length};
use tests::{SET_NX_PX, backend_error_kind, connect, one_attempt, start_waiter};

async fn labelled(server: &RedisServer, label: &str) -> LockManager {
    let builder = one_attempt(LockManager::builder()).label(label);
    builder.connect(&server.url()).await.unwrap()
}

fn labels(info: &LockInfo) -> Vec<String> {
    let labels = info.waiters.iter().map(|waiter| waiter.label.to_string());
    labels.collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inspect_shows_queue_in_order() {
    let server = RedisServer::start();
    let holder = labelled(&server, "holder").await;
    let held = holder.lock(NAME).ttl(LONG).acquire().await.unwrap();
    let mut waiting = Vec::new();
    for number in 1..=5 {
        let locks = labelled(&server, &format!("waiter-{number}")).await;
        waiting.push(start_waiter(&server, locks.lock(NAME).wait(SOON), number).await);
    }
    let info = connect(&server).await.admin().inspect(NAME).await.unwrap();
    let expected: Vec<_> = (1..=5).map(|n| format!("waiter-{n}")).collect();
    assert_eq!(labels(&info), expected);
    assert_eq!(info.waiters_total, 5);
    for (position, waiter) in (0..).zip(&info.waiters) {
        assert_eq!(waiter.position, position);
        assert!(waiter.expires_in > Duration::ZERO, "{waiter:?}");
    }
    let shown = info.holder().unwrap();
    assert_eq!(
        (&*shown.label, shown.token),
        ("holder", held.fencing_token())
    );
    // They leave the queue in the order that was shown.
    held.release().await.unwrap();
    for waiter in waiting {
        waiter.await.unwrap().unwrap().release().await.unwrap();
    }
    assert_eq!(queue_length(&server), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inspect_shows_the_holder_and_its_lease() {
    let server = RedisServer::start();
    let locks = labelled(&server, "web-1").await;
    let other = connect(&server).await;
    assert_eq!(
        locks.admin().inspect(NAME).await.unwrap().status,
        LockStatus::Free
    );
    assert_eq!(locks.holder(NAME).await.unwrap(), None);

    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    let longer = ms(30);
    tokio::time::sleep(longer).await;
    let info = other.admin().inspect(NAME).await.unwrap();
    assert_eq!((info.name.as_str(), &*info.key), (NAME, KEY));
    let difference = SystemTime::now().duration_since(info.read_at);
    assert!(difference.is_ok_and(|difference| difference < SOON));
    let holder = info.holder().unwrap();
    assert_eq!(holder.kind, Kind::Exclusive);
    assert!(!holder.is_own() && !holder.is_foreign());
    let held_for = holder.held_for.unwrap();
    assert!((longer..SOON).contains(&held_for), "{held_for:?}");
    let remaining = holder.remaining.unwrap();
    assert!(remaining > LONG / 2 && remaining <= LONG, "{remaining:?}");
    assert!(locks.holder(NAME).await.unwrap().unwrap().is_own());
    // The owner id would allow a reader to release the lock.
    let value = server.cli(&["GET", KEY]).text().to_owned();
    let owner_id = value["lk1:".len()..].split(' ').next().unwrap();
    assert!(!format!("{info:?}").contains(owner_id), "{info:?}");
    held.release().await.unwrap();
}

/// The value of a shared lock has the label of its first holder, which may be gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inspect_shows_the_holders_of_a_shared_lock() {
    let server = RedisServer::start();
    let in_memory = || LockManager::builder().label("web-1").in_memory().unwrap();
    let (first, second) = (
        labelled(&server, "web-1").await,
        labelled(&server, "web-2").await,
    );
    for (first, second) in [(first, second), (in_memory(), in_memory())] {
        let is_one = second.admin().inspect(NAME).await.unwrap().status == LockStatus::Free && {
            let held = first.lock("probe").acquire().await.unwrap();
            let is_seen = second.lock("probe").try_acquire().await.unwrap().is_none();
            held.release().await.unwrap();
            is_seen
        };
        // Managers in memory share nothing.
        let second = if is_one { second } else { first.clone() };
        let permits = |locks: &LockManager| locks.lock(NAME).ttl(LONG).permits(8);
        let gone = permits(&first).acquire().await.unwrap();
        let heavy = permits(&second).weight(4).acquire().await.unwrap();
        let light = permits(&second).acquire().await.unwrap();
        gone.release().await.unwrap();
        let info = second.admin().inspect(NAME).await.unwrap();
        let shown = info.holder().unwrap();
        assert_eq!(shown.kind, Kind::Permits { of: 8, weight: 1 });
        assert_eq!(
            (&*shown.label, shown.token),
            ("web-1", heavy.fencing_token())
        );
        assert!(shown.is_own());
        assert_eq!(shown.count, 5);
        assert_eq!((info.holders.len(), info.holders_total), (2, 5));
        let heavy_one = info
            .holders
            .iter()
            .find(|holder| holder.kind == heavy.kind());
        let heavy_one = heavy_one.expect("the heavy holder");
        assert!(heavy_one.is_own() && !heavy_one.is_foreign());
        assert_eq!(heavy_one.token, heavy.fencing_token());
        assert_eq!(heavy_one.count, 4);
        assert!(
            heavy_one
                .remaining
                .is_none_or(|left| left > LONG / 2 && left <= LONG)
        );
        if is_one {
            assert!(info.holders.iter().all(|holder| &*holder.label == "web-2"));
            assert!(
                !first
                    .admin()
                    .inspect(NAME)
                    .await
                    .unwrap()
                    .holder()
                    .unwrap()
                    .is_own()
            );
        }
        let list = second.admin().list("*").await.unwrap();
        assert_eq!(
            (list.locks[0].holders.len(), list.locks[0].holders_total),
            (0, 5)
        );
        heavy.release().await.unwrap();
        light.release().await.unwrap();
        let held = second.lock(NAME).acquire().await.unwrap();
        let info = second.admin().inspect(NAME).await.unwrap();
        assert_eq!(info.holders, [info.holder().unwrap().clone()]);
        assert_eq!(info.holders_total, 1);
        held.release().await.unwrap();
        assert_eq!(second.admin().inspect(NAME).await.unwrap().holders_total, 0);
    }
}

/// Acquires the lock with a `min_hold`, and releases it at once.
async fn keep(request: LockRequest) {
    let request = request.ttl(LONG).min_hold(SOON);
    request.acquire().await.unwrap().release().await.unwrap();
}

#[track_caller]
fn assert_kept(info: &LockInfo, kind: Kind) {
    assert_eq!(info.holder(), None);
    assert!(info.holders.is_empty());
    let LockStatus::Kept {
        free_at,
        label,
        tag,
        kind: shown,
        ..
    } = &info.status
    else {
        panic!("{info:?}");
    };
    let left = free_at.unwrap().duration_since(info.read_at).unwrap();
    assert!(left > SOON / 2 && left <= SOON, "{left:?}");
    assert_eq!((&**label, tag.as_deref(), *shown), ("nightly", None, kind));
}

/// A `min_hold` keeps the key locked without a holder. That isn't a revocation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inspect_shows_a_released_lock_with_min_hold_as_kept() {
    let server = RedisServer::start();
    let locks = labelled(&server, "nightly").await;
    for locks in [
        &locks,
        &LockManager::builder().label("nightly").in_memory().unwrap(),
    ] {
        keep(locks.lock(NAME)).await;
        assert_kept(&locks.admin().inspect(NAME).await.unwrap(), Kind::Exclusive);
        let page = locks.admin().list("*").await.unwrap();
        assert_kept(&page.locks[0], Kind::Exclusive);
        locks
            .admin()
            .force_release(NAME)
            .free_at_once()
            .await
            .unwrap();

        let of_two = |weight| locks.lock(NAME).permits(2).weight(weight);
        keep(of_two(1)).await;
        let one = Kind::Permits { of: 2, weight: 1 };
        assert_kept(&locks.admin().inspect(NAME).await.unwrap(), one);
        // The other permit is held, so the lock has a holder.
        let held = of_two(1).acquire().await.unwrap();
        let info = locks.admin().inspect(NAME).await.unwrap();
        assert_eq!((info.holders.len(), info.holders_total), (1, 2));
        assert!(info.holder().is_some());
        held.release().await.unwrap();
        assert_kept(&locks.admin().inspect(NAME).await.unwrap(), one);
    }
    keep(locks.lock("other").dialect(SET_NX_PX)).await;
    assert_kept(
        &locks.admin().inspect("other").await.unwrap(),
        Kind::Exclusive,
    );
}

/// The holder has released the lock, so no error may say that it holds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn error_of_a_lock_that_min_hold_keeps_says_so() {
    let server = RedisServer::start();
    let locks = labelled(&server, "nightly").await;
    let in_memory = LockManager::builder().label("nightly").in_memory().unwrap();
    for (locks, dialect) in [
        (&locks, Dialect::Native),
        (&locks, SET_NX_PX),
        (&in_memory, Dialect::Native),
    ] {
        let name = dialect.to_string();
        let request = || locks.lock(name.as_str()).dialect(dialect);
        keep(request()).await;
        for wait in [Duration::ZERO, ms(20)] {
            let error = request().wait(wait).acquire().await.unwrap_err();
            assert!(error.holder().is_some_and(Holder::is_kept), "{error}");
            let text = error.to_string();
            let expected =
                ": `nightly` released it, and its `min_hold` keeps it locked for another ";
            assert!(text.contains(expected), "{text}");
        }
        locks
            .admin()
            .force_release(name.as_str())
            .free_at_once()
            .await
            .unwrap();
        let _held = request().ttl(LONG).acquire().await.unwrap();
        let revoke = locks.admin().force_release(name.as_str()).by("ops");
        revoke.reason("stuck").await.unwrap();
        let error = request().wait(Duration::ZERO).acquire().await.unwrap_err();
        assert!(error.holder().is_some_and(Holder::is_revoked), "{error}");
        let expected = ": it was revoked by ops: stuck, and stays locked for another ";
        assert!(error.to_string().contains(expected), "{error}");
    }
}

/// The server's data tells a kept lock from a revoked one by the label.
#[test]
fn label_of_a_revoked_lock_is_refused() {
    let builder = LockManager::builder().label("revoked by me");
    let error = builder.in_memory().unwrap_err();
    assert!(
        error.to_string().contains("marks a revoked lock"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inspect_shows_locks_of_other_dialects_and_foreign_values() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let in_dialect = labelled(&server, "billing-7").await;
    let held = in_dialect.lock(NAME).dialect(SET_NX_PX).acquire().await;
    let holder = locks.holder(NAME).await.unwrap().unwrap();
    assert_eq!((&*holder.label, holder.token), ("billing-7", None));
    assert_eq!((holder.held_for, holder.is_foreign()), (None, false));
    held.unwrap().release().await.unwrap();

    // An acquire waits for the end of a foreign value with an expiry, and refuses all others.
    server.cli(&["SET", KEY, "\u{1b}[31mredsync\n", "PX", "60000"]);
    let holder = locks.holder(NAME).await.unwrap().unwrap();
    assert_eq!(
        (&*holder.label, holder.is_foreign()),
        ("a client of another library", true)
    );
    assert!(holder.remaining.is_some_and(|left| left <= LONG));
    let deadline: &[&str] = &["SET", KEY, "9999999999999", "PX", "60000"];
    let owners = one_attempt(LockManager::builder()).dialect(SET_NX_PX);
    let owners = owners.connect(&server.url()).await.unwrap();
    for (locks, command) in [
        (&locks, &["SET", KEY, "me"][..]),
        (&locks, &["HSET", KEY, "f", "1"]),
        (&locks, &["SET", KEY, "9999999999999"]),
        (&owners, deadline),
    ] {
        server.cli(&["DEL", KEY]);
        server.cli(command);
        let refused = locks.lock(NAME).acquire().await.unwrap_err();
        let LockError::ForeignKey { found: theirs, .. } = refused else {
            panic!("{command:?}: {refused}");
        };
        let info = locks.admin().inspect(NAME).await.unwrap();
        let LockStatus::Foreign { found, advice, .. } = &info.status else {
            panic!("{command:?}: {info:?}");
        };
        assert_eq!(*found, theirs);
        assert!(!advice.is_empty());
        assert_eq!(locks.holder(NAME).await.unwrap(), None);
    }
    assert!(locks.holder(NAME).await.unwrap().unwrap().is_foreign());
    // In its own dialect, a deadline is a lock.
    let builder = LockManager::builder().dialect(Dialect::DeadlineGetset);
    let locks = builder.connect(&server.url()).await.unwrap();
    let holder = locks.holder(NAME).await.unwrap().unwrap();
    assert_eq!(&*holder.label, "9999999999999");
}

/// A native lock without an expiry is the work of an operator, and stays for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inspect_shows_a_lock_without_an_expiry() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    server.cli(&["PERSIST", KEY]);
    let holder = locks.holder(NAME).await.unwrap().unwrap();
    assert_eq!(holder.remaining, None);
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inspect_shows_a_hundred_waiters_and_counts_the_others() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    let mut crowd = vec!["ZADD".to_owned(), QUEUE.to_owned()];
    for number in 0..250 {
        let id = format!("{number:08}-0000-4000-8000-000000000000");
        crowd.extend([
            number.to_string(),
            format!("{id} s 2000 1 lk1:c:1 w{number} #t{number}"),
        ]);
    }
    // An entry that this version cannot read shows nothing of its text.
    crowd.extend(["250".to_owned(), "secret".to_owned()]);
    server.cli(&crowd);
    server.cli(&["ZREMRANGEBYRANK", QUEUE, "0", "0"]);
    server.cli(&["ZADD", QUEUE, "-1", "secret"]);
    let info = locks.admin().inspect(NAME).await.unwrap();
    assert_eq!((info.waiters.len(), info.waiters_total), (100, 250));
    assert_eq!(&*info.waiters[0].label, "a waiter of another version");
    let first = &info.waiters[1];
    assert_eq!((&*first.label, first.tag.as_deref()), ("w1", Some("t1")));
    // Its time has passed long ago.
    assert_eq!(first.expires_in, Duration::ZERO);
    assert!(!format!("{info:?}").contains("0000-4000-8000"), "{info:?}");
    server.cli(&["DEL", QUEUE]);
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inspect_of_an_invalid_name_or_queue_is_an_error() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let error = locks.admin().inspect("").await.unwrap_err();
    assert!(
        matches!(error, LockError::Invalid(InvalidSetting::Name { .. })),
        "{error}"
    );
    server.cli(&["LPUSH", QUEUE, "x"]);
    let error = locks.admin().inspect(NAME).await.unwrap_err();
    assert!(matches!(error, LockError::ForeignKey { .. }), "{error}");
}

/// The rights of locks are enough: README's line has no right for operators.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn inspect_needs_the_rights_of_locks_only() {
    let server = RedisServer::start();
    let rights = "+role +info +time +ping +script|load +evalsha +eval +subscribe +get +set +del \
                  +exists +type +incr +pttl +pexpire +zadd +zrem +zrange +zrank +zscore +publish \
                  +pubsub|numsub";
    let mut command = vec![
        "ACL",
        "SETUSER",
        "app",
        "on",
        ">pass",
        "~lock:*",
        "~{lock:*}:*",
    ];
    command.extend(
        ["&lk1:lock::*"]
            .into_iter()
            .chain(rights.split_whitespace()),
    );
    assert_eq!(server.cli(&command).error(), None);
    let url = format!("redis://app:pass@{}", server.address());
    let app = LockManager::connect(&url).await.unwrap();
    let held = app.lock(NAME).acquire().await.unwrap();
    let waiter = start_waiter(&server, app.lock(NAME).wait(SOON), 1).await;
    eventually_async(SOON, async || {
        app.admin().inspect(NAME).await.unwrap().waiters_total == 1
    })
    .await;
    held.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();

    server.cli(&["ACL", "SETUSER", "app", "-zrank"]);
    let waiter = app.lock(NAME).acquire().await.unwrap();
    server.cli(&["ZADD", QUEUE, "1", "x"]);
    let kind = backend_error_kind(app.admin().inspect(NAME).await);
    assert_eq!(kind, lock_core::error::BackendErrorKind::Permission);
    server.cli(&["DEL", QUEUE]);
    waiter.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn inspect_works_in_memory() {
    let locks = LockManager::builder().label("app").in_memory().unwrap();
    assert_eq!(
        locks.admin().inspect(NAME).await.unwrap().status,
        LockStatus::Free
    );
    let held = locks.lock(NAME).acquire().await.unwrap();
    let waiters: Vec<_> = (0..3)
        .map(|_| tokio::spawn(locks.lock(NAME).wait(SOON).acquire()))
        .collect();
    tokio::time::sleep(ms(1_500)).await;
    let info = locks.admin().inspect(NAME).await.unwrap();
    assert_eq!((info.waiters.len(), info.waiters_total), (3, 3));
    let holder = info.holder().unwrap();
    assert!(holder.is_own());
    assert_eq!(holder.held_for, Some(ms(1_500)));
    // It is held as long as its guard.
    assert_eq!(holder.remaining, None);
    assert_eq!(holder.token, held.fencing_token());
    let difference = SystemTime::now().duration_since(info.read_at);
    assert!(difference.is_ok_and(|difference| difference < SOON));
    held.release().await.unwrap();
    for waiter in waiters {
        waiter.await.unwrap().unwrap().release().await.unwrap();
    }
    assert_eq!(
        locks.admin().inspect(NAME).await.unwrap().status,
        LockStatus::Free
    );

    // A lock that is not renewed has a lease, and is free when it ends.
    let short = locks.lock(NAME).ttl(ms(500)).renew(lock_core::Renew::Never);
    let lost = short.acquire().await.unwrap();
    let holder = locks.holder(NAME).await.unwrap().unwrap();
    assert_eq!(holder.remaining, Some(ms(500)));
    tokio::time::sleep(ms(600)).await;
    assert_eq!(locks.holder(NAME).await.unwrap(), None);
    drop(lost);
}
