//! Which lock a release takes: the one that the operator has seen, and of which library.

use std::future::IntoFuture;
use std::time::Duration;

use lock_core::admin::{AdminError, LockInfo, LockStatus};
use lock_core::dialect::Dialect;
use lock_core::{FencingToken, LockManager};
use test_support::fixtures::{AT_ONCE, KEY, NAME, SOON, exists, ms};
use test_support::{Direction, Proxy, RedisServer, eventually_async};
use tests::{SET_NX_PX, WATCH_MULTI, connect, connect_to, granted, lost_in_time, start_waiter};

/// The value of the key, in its words.
fn value(server: &RedisServer) -> String {
    server.cli(&["GET", KEY]).text().to_owned()
}

/// An operator looks at a holder, and the lock changes hands before the operator acts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expect_token_protects_the_next_holder() {
    let server = RedisServer::start();
    let server_locks = connect(&server).await;
    for locks in [server_locks, LockManager::in_memory()] {
        let held = locks.lock(NAME).acquire().await.unwrap();
        let seen = locks.holder(NAME).await.unwrap().unwrap().token.unwrap();
        held.release().await.unwrap();
        let admin = locks.admin();
        for now in [false, true] {
            let release = admin.force_release(NAME).expect_token(seen);
            let release = if now { release.free_at_once() } else { release };
            let error = release.clone().await.unwrap_err();
            assert!(
                matches!(error, AdminError::Changed { holder: None, .. }),
                "{error}"
            );

            let next = locks.lock(NAME).acquire().await.unwrap();
            let error = release.await.unwrap_err();
            let AdminError::Changed {
                holder: Some(holder),
                ..
            } = &error
            else {
                panic!("{error}");
            };
            assert_eq!(holder.token, next.fencing_token());
            assert!(error.to_string().contains(&*holder.label), "{error}");
            next.renew().await.unwrap();
            next.release().await.unwrap();
        }
        // The token of the holder is accepted, also after the revocation.
        let held = locks.lock(NAME).acquire().await.unwrap();
        let token = held.fencing_token().unwrap();
        for previous in [Some(token), None] {
            let revoked = admin.force_release(NAME).expect_token(token).await.unwrap();
            assert_eq!(revoked.previous.and_then(|holder| holder.token), previous);
            assert!(revoked.free_in > Duration::ZERO);
        }
        let freed = admin.force_release(NAME).expect_token(token).free_at_once();
        assert_eq!(freed.await.unwrap().previous, None);
        assert_eq!(
            locks.admin().inspect(NAME).await.unwrap().status,
            LockStatus::Free
        );
        drop(held);
    }
}

fn has_same_state(before: &LockStatus, after: &LockStatus) -> bool {
    let token = |status: &LockStatus| match status {
        LockStatus::Held(holder) => holder.token,
        _ => None,
    };
    std::mem::discriminant(before) == std::mem::discriminant(after) && token(before) == token(after)
}

/// Releases the lock in all ways, which change nothing, since the lock is not what was seen.
async fn is_kept(locks: &LockManager, seen: &LockInfo) {
    let before = locks.admin().inspect(NAME).await.unwrap();
    let release = locks.admin().force_release(NAME).expect_unchanged(seen);
    for (release, removes_foreign) in [
        (release.clone(), false),
        (release.clone().free_at_once(), false),
        (release.clone().remove_foreign(), true),
        (release.free_at_once().remove_foreign(), true),
    ] {
        let error = release.await.unwrap_err();
        let holder = match &error {
            AdminError::Changed { holder, .. } => holder,
            // The digest of a hash is not compared, because this release does not remove it anyway.
            AdminError::Foreign { .. } if !removes_foreign => continue,
            _ => panic!("{error}"),
        };
        assert_eq!(
            holder.as_ref().map(|holder| &holder.label),
            before.holder().map(|holder| &holder.label)
        );
    }
    let after = locks.admin().inspect(NAME).await.unwrap();
    assert!(
        has_same_state(&before.status, &after.status),
        "{before:?} {after:?}"
    );
}

/// In dialects without tokens too, an operator takes only the lock that was seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expect_unchanged_protects_the_next_holder() {
    let server = RedisServer::start();
    let on_server = connect(&server).await;
    let native = Dialect::Native;
    for (locks, dialect) in [
        (LockManager::in_memory(), native),
        (on_server.clone(), native),
        (on_server.clone(), SET_NX_PX),
        (on_server.clone(), WATCH_MULTI),
        (on_server.clone(), Dialect::LuaSetnxExpire),
        (on_server.clone(), Dialect::SetnxExpire),
    ] {
        let acquire = || locks.lock(NAME).dialect(dialect).ttl(SOON).acquire();
        let inspect = async || locks.admin().inspect(NAME).await.unwrap();
        let free = inspect().await;
        let first = acquire().await.unwrap();
        let seen_first = inspect().await;
        is_kept(&locks, &free).await;
        first.release().await.unwrap();
        is_kept(&locks, &seen_first).await;
        let second = acquire().await.unwrap();
        is_kept(&locks, &seen_first).await;

        // A list shows the same as an inspection, and a renewal does not change it.
        let listed = locks.admin().list("*").await.unwrap().locks.remove(0);
        second.renew().await.unwrap();
        let release = locks.admin().force_release(NAME).expect_unchanged(&listed);
        assert!(release.await.unwrap().previous.is_some(), "{dialect}");
        // The lock that was seen is revoked by now.
        is_kept(&locks, &listed).await;
        let blocked = inspect().await;
        assert!(matches!(blocked.status, LockStatus::Blocked { .. }));
        let release = || locks.admin().force_release(NAME).expect_unchanged(&blocked);
        release().await.unwrap();
        release().free_at_once().await.unwrap();
        drop(second);
        // Freed, and held by another holder: the next holder keeps it.
        let third = acquire().await.unwrap();
        is_kept(&locks, &blocked).await;
        third.release().await.unwrap();
    }
}

/// The value of a lock in a dialect without tokens.
const OWNED: &str = "00000001-0000-4000-8000-000000000000 web-1";

/// The owner id is never shown: a client that knows it can release the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_seen_shows_no_owner_id() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    server.cli(&["SET", KEY, OWNED, "PX", "60000"]);
    let seen = locks.admin().inspect(NAME).await.unwrap();
    let release = locks.admin().force_release(NAME).expect_unchanged(&seen);
    for text in [format!("{seen:?}"), format!("{release:?}")] {
        assert!(!text.contains("00000001"), "{text}");
    }
}

/// The same for values of other libraries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expect_unchanged_compares_foreign_values() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let long = "\u{e9}".repeat(300);
    let cut = format!("{}\u{e9}", "y".repeat(199));
    let cut = OWNED.replace("web-1", &cut[OWNED.len() - "web-1".len()..]);
    let commands = [
        &["SET", KEY, "redsync", "PX", "60000"][..],
        &["SET", KEY, &long],
        &["SET", KEY, ""],
        // As Redisson writes a lock.
        &["HSET", KEY, "uuid-a:1", "1"],
        &["HSET", KEY, "uuid-b:9", "1"],
        &["LPUSH", KEY, "a"],
        // Not text.
        &["EVAL", "redis.call('SET', KEYS[1], '\\255\\254')", "1", KEY],
        &["EVAL", "redis.call('SET', KEYS[1], '\\253\\252')", "1", KEY],
        &["SET", KEY, OWNED, "PX", "60000"],
        // Cut inside of a letter.
        &["SET", KEY, &cut, "PX", "60000"],
    ];
    for command in commands {
        for other in commands {
            server.cli(&["DEL", KEY]);
            server.cli(command);
            let seen = locks.admin().inspect_foreign(NAME).await.unwrap();
            server.cli(&["DEL", KEY]);
            server.cli(other);
            if command != other {
                is_kept(&locks, &seen).await;
                continue;
            }
            let release = locks
                .admin()
                .force_release(NAME)
                .free_at_once()
                .remove_foreign();
            release.expect_unchanged(&seen).await.unwrap();
            assert!(!exists(&server, KEY), "{command:?}");
        }
    }
}

/// An inspection costs the same for each value, so it does not identify a hash.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hash_is_removed_only_if_it_was_identified() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    server.cli(&["HSET", KEY, "uuid-a:1", "1"]);
    let seen = locks.admin().inspect(NAME).await.unwrap();
    let stats = server.cli(&["INFO", "commandstats"]);
    assert!(!stats.text().contains("cmdstat_dump:"), "{}", stats.text());
    let release = locks.admin().force_release(NAME).expect_unchanged(&seen);
    let error = release.remove_foreign().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid setting `expect_unchanged` (`a hash that was not identified`): pass the result of \
         `admin().inspect_foreign(..)`"
    );
    let seen = locks.admin().inspect_foreign(NAME).await.unwrap();
    server.cli(&["HSET", KEY, "uuid-a:1", "2"]);
    let release = locks.admin().force_release(NAME).expect_unchanged(&seen);
    let error = release.remove_foreign().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "the lock changed hands, and nothing was released: the key holds a hash, as Redisson's locks are; \
         inspect it again"
    );
    assert!(exists(&server, KEY));
}

/// Two locks of another library may hold equal values.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_seen_of_another_lock_is_refused() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let other = "other\u{1b}[31m";
    server.cli(&["SET", KEY, "1"]);
    server.cli(&["SET", &format!("lock:{other}"), "1"]);
    let seen = locks.admin().inspect_foreign(other).await.unwrap();
    let release = locks.admin().force_release(NAME).expect_unchanged(&seen);
    let error = release.remove_foreign().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "invalid setting `expect_unchanged` (`other\\u{1b}[31m`): pass what was seen of the lock that is \
         released"
    );
    assert!(exists(&server, KEY));
    let release = locks.admin().force_release(other).expect_unchanged(&seen);
    release.remove_foreign().await.unwrap();
}

/// Other libraries' values have no owner that a revocation could replace.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_values_are_removed_only_on_demand() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let admin = locks.admin();
    for command in [
        &["SET", KEY, "redsync", "PX", "60000"][..],
        &["SET", KEY, "\u{1b}[31m"],
        &["SET", KEY, ""],
        &["HSET", KEY, "field", "1"],
        &["SET", KEY, "lk1:no-id 1 2 x", "PX", "60000"],
    ] {
        server.cli(command);
        let before = server.cli(&["DUMP", KEY]);
        for release in [
            admin.force_release(NAME),
            admin.force_release(NAME).free_at_once(),
        ] {
            let error = release.await.unwrap_err();
            assert!(
                matches!(error, AdminError::Foreign { .. }),
                "{command:?}: {error}"
            );
            assert!(!error.to_string().contains('\u{1b}'), "{error}");
        }
        let token: FencingToken = "1".parse().unwrap();
        let expecting = admin
            .force_release(NAME)
            .remove_foreign()
            .expect_token(token);
        assert!(matches!(expecting.await, Err(AdminError::Changed { .. })));
        assert_eq!(server.cli(&["DUMP", KEY]), before);
        // A waiter behind a value with an expiry gets the lock at once.
        let mut waiter = None;
        if command.contains(&"PX") {
            waiter = Some(start_waiter(&server, locks.lock(NAME).wait(SOON), 1).await);
        }
        let removed = admin.force_release(NAME).remove_foreign().await.unwrap();
        assert_eq!(
            (removed.is_granted, removed.free_in),
            (waiter.is_some(), ms(0))
        );
        match waiter {
            Some(waiter) => granted(AT_ONCE, waiter).await.release().await.unwrap(),
            None => assert!(!exists(&server, KEY)),
        }
    }
    let error = admin.force_release("").await.unwrap_err();
    assert!(matches!(error, AdminError::Lock(_)), "{error}");
}

/// The script removes only the value that was seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_value_that_changed_meanwhile_is_kept() {
    let server = RedisServer::start();
    server.cli(&["SET", KEY, "first", "PX", "60000"]);
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_to(&proxy.url()).await;
    // The reply with the digest of the first value travels while another client replaces the value.
    proxy.delay(Direction::ToClient, ms(300));
    let removing = locks.admin().force_release(NAME).remove_foreign();
    let removing = tokio::spawn(removing.into_future());
    let was_read = |server: &RedisServer| {
        let stats = server.cli(&["INFO", "commandstats"]);
        stats.text().contains("cmdstat_dump:")
    };
    eventually_async(SOON, async || was_read(&server)).await;
    server.cli(&["SET", KEY, "second", "PX", "60000"]);
    let error = removing.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("was not changed"), "{error}");
    assert_eq!(value(&server), "second");
}

/// In the dialects that write an owner, the renewal compares the value.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_of_other_dialects_are_revoked() {
    let ttl = Duration::from_secs(2);
    let server = RedisServer::start();
    let locks = connect(&server).await;
    for dialect in [
        SET_NX_PX,
        WATCH_MULTI,
        Dialect::LuaSetnxExpire,
        Dialect::SetnxExpire,
    ] {
        let request = locks.lock(NAME).dialect(dialect).ttl(ttl);
        let held = request.acquire().await.unwrap();
        let revoked = locks.admin().force_release(NAME).by("ops").await.unwrap();
        assert!(!revoked.previous.unwrap().is_foreign());
        assert_eq!(
            value(&server),
            "00000000-0000-0000-0000-000000000000 revoked by ops"
        );
        lost_in_time(&held).await;
        assert!(exists(&server, KEY), "{dialect}");
        drop(held);
        let freed = locks
            .admin()
            .force_release(NAME)
            .free_at_once()
            .await
            .unwrap();
        assert_eq!(freed.previous, None);
    }
    // A deadline has no owner.
    let dialect = Dialect::DeadlineGetset;
    let held = locks
        .lock(NAME)
        .dialect(dialect)
        .ttl(ttl)
        .acquire()
        .await
        .unwrap();
    let error = locks.admin().force_release(NAME).await.unwrap_err();
    assert!(matches!(error, AdminError::Foreign { .. }), "{error}");
    held.release().await.unwrap();
}
