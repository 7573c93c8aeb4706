//! Taking a lock from its holder.

use std::fs;
use std::future::IntoFuture;
use std::time::{Duration, Instant};

use lock_core::{
    AdminError, BackendErrorKind, Dialect, FencingToken, LockManager, LockStatus, Renew,
};
use test_support::fixtures::{
    AT_ONCE, KEY, LONG, NAME, QUEUE, SLACK, SOON, exists, ms, time_to_expiry,
};
use test_support::{Direction, Helper, Proxy, RedisServer, eventually_async, helper};
use tests::{
    SET_NX_PX, WATCH_MULTI, backend_error_kind, connect, connect_to, fencing_token, granted,
    lost_in_time, start_waiter,
};

/// The value of the key, in its words.
fn value(server: &RedisServer) -> String {
    server.cli(&["GET", KEY]).text().to_owned()
}

fn blocked_text(status: &LockStatus) -> &str {
    match status {
        LockStatus::Blocked { text, .. } => text,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_lock_is_lost_and_stays_locked_until_its_lease_ends() {
    let ttl = Duration::from_secs(3);
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let operator = connect(&server).await;
    let held = locks.lock(NAME).ttl(ttl).acquire().await.unwrap();
    let token = held.fencing_token();
    let waiter = start_waiter(&server, operator.lock(NAME).wait(SOON), 1).await;
    let request = operator.admin().force_release(NAME).by("ops@host");
    let revoked_at = Instant::now();
    let revoked = request.reason("stuck import").await.unwrap();
    let previous = revoked.previous.unwrap();
    assert_eq!(previous.token, token);
    assert!(revoked.free_at > ttl / 2 && revoked.free_at <= ttl);
    assert!(!revoked.granted);
    let left = time_to_expiry(&server, KEY);
    assert!(left <= revoked.free_at, "{left:?}: {:?}", revoked.free_at);
    let words = value(&server);
    let number = token.unwrap();
    let start = format!("lk1:00000000-0000-0000-0000-000000000000 {number} ");
    assert!(words.starts_with(&start), "{words}");
    assert!(
        words.ends_with(" revoked by ops@host: stuck import"),
        "{words}"
    );
    let info = operator.inspect(NAME).await.unwrap();
    assert_eq!(
        blocked_text(&info.state),
        "revoked by ops@host: stuck import"
    );

    // The next renewal reports the loss to the holder, and does not grant the lock to the waiter.
    lost_in_time(&held).await;
    let told = revoked_at.elapsed();
    assert!(told < ttl / 3 + SLACK, "{told:?}");
    assert!(!waiter.is_finished());
    let next = granted(ttl, waiter).await;
    let took = revoked_at.elapsed();
    assert!(took + ms(1) >= revoked.free_at, "{took:?}");
    assert!(took < revoked.free_at + SLACK, "{took:?}");
    assert!(fencing_token(&next) > token.unwrap().as_u64());
    next.release().await.unwrap();
    assert!(held.release().await.unwrap_err().is_lost());
}

/// A process that reads a counter under the lock is frozen, and writes when it wakes up. It has not
/// been told of the revocation, and no other section may have run in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoke_keeps_exclusion() {
    const SECTIONS: u64 = 4;
    let server = RedisServer::start();
    let file = server.directory().join("counter");
    fs::write(&file, "0").unwrap();
    let slow: Helper = helper!("lock-worker").env("DISTRIBUTED_LOCK_URL", server.url());
    let slow = slow
        .arg("late-write")
        .arg(&file)
        .arg(NAME)
        .arg("3000")
        .spawn();
    slow.record(SOON, |record| record.get("read").is_some());
    slow.stop();
    let locks = connect(&server).await;
    let mut sections = Vec::new();
    for number in 1..=SECTIONS {
        let waiter = start_waiter(&server, locks.lock(NAME).wait(SOON), number.cast_signed()).await;
        let file = file.clone();
        sections.push(tokio::spawn(async move {
            let held = waiter.await.unwrap().unwrap();
            let before: u64 = fs::read_to_string(&file).unwrap().parse().unwrap();
            tokio::time::sleep(ms(20)).await;
            fs::write(&file, (before + 1).to_string()).unwrap();
            held.release().await.unwrap();
        }));
    }
    let revoked = locks.admin().force_release(NAME).await.unwrap();
    assert!(revoked.previous.is_some());
    // Long enough for the waiters, if they were let in. A newcomer makes the server look at them.
    for _ in 0..10 {
        let newcomer = locks.lock(NAME).try_acquire().await.unwrap();
        assert!(newcomer.is_none());
        tokio::time::sleep(ms(20)).await;
    }
    slow.send_line("write");
    slow.cont();
    slow.record(SOON, |record| record.get("written").is_some());
    for section in sections {
        section.await.unwrap();
    }
    let counted: u64 = fs::read_to_string(&file).unwrap().parse().unwrap();
    assert_eq!(counted, SECTIONS + 1);
    slow.close_stdin();
    assert!(slow.wait(SOON).success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn now_hands_over_at_once() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let operator = connect(&server).await;
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    let first = start_waiter(&server, operator.lock(NAME).wait(SOON), 1).await;
    let second = start_waiter(&server, locks.lock(NAME).wait(SOON), 2).await;
    let released = operator.admin().force_release(NAME).now().await.unwrap();
    assert!(released.granted);
    assert_eq!(released.free_at, Duration::ZERO);
    assert_eq!(released.previous.unwrap().token, held.fencing_token());
    // In the order of arrival, by the notification of the grant.
    let next = granted(AT_ONCE, first).await;
    assert!(!second.is_finished());
    assert!(fencing_token(&next) > fencing_token(&held));
    assert!(held.renew().await.unwrap_err().is_lost());
    next.release().await.unwrap();
    granted(AT_ONCE, second).await.release().await.unwrap();

    // Without a waiter the key is free.
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    let released = operator.admin().force_release(NAME).now().await.unwrap();
    assert!(!released.granted && !exists(&server, KEY));
    drop(held);
}

/// An operator looks at a holder, and the lock changes hands before the operator acts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expect_token_protects_the_next_holder() {
    let server = RedisServer::start();
    let server_locks = connect(&server).await;
    for locks in [server_locks, LockManager::in_memory()] {
        let held = locks.lock(NAME).acquire().await.unwrap();
        let seen = locks.holder(NAME).await.unwrap().unwrap().token;
        held.release().await.unwrap();
        let admin = locks.admin();
        for now in [false, true] {
            let release = admin.force_release(NAME).expect_token(seen);
            let release = if now { release.now() } else { release };
            let error = release.clone().await.unwrap_err();
            assert!(
                matches!(error, AdminError::Changed { now: None, .. }),
                "{error}"
            );

            let next = locks.lock(NAME).acquire().await.unwrap();
            let error = release.await.unwrap_err();
            let AdminError::Changed { now: Some(now), .. } = &error else {
                panic!("{error}");
            };
            assert_eq!(now.token, next.fencing_token());
            assert!(error.to_string().contains(&*now.label), "{error}");
            next.renew().await.unwrap();
            next.release().await.unwrap();
        }
        // The token of the holder is accepted, also after the revocation.
        let held = locks.lock(NAME).acquire().await.unwrap();
        let token = held.fencing_token();
        for previous in [token, None] {
            let revoked = admin.force_release(NAME).expect_token(token).await.unwrap();
            assert_eq!(revoked.previous.and_then(|holder| holder.token), previous);
            assert!(revoked.free_at > Duration::ZERO);
        }
        let freed = admin.force_release(NAME).expect_token(token).now();
        assert_eq!(freed.await.unwrap().previous, None);
        assert_eq!(locks.inspect(NAME).await.unwrap().state, LockStatus::Free);
        drop(held);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_of_a_free_lock_changes_nothing() {
    let server = RedisServer::start();
    let server_locks = connect(&server).await;
    for locks in [server_locks, LockManager::in_memory()] {
        for release in [
            locks.admin().force_release(NAME),
            locks.admin().force_release(NAME).now(),
            locks.admin().force_release(NAME).foreign(true),
        ] {
            let released = release.await.unwrap();
            assert_eq!((released.previous, released.granted), (None, false));
            assert_eq!(released.free_at, Duration::ZERO);
        }
    }
    assert!(!exists(&server, KEY));
}

/// The first operator's reason stays, and a later one does not move the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_revocation_keeps_the_first() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    let revoke = |reason: &str| locks.admin().force_release(NAME).by("a").reason(reason);
    revoke("first").await.unwrap();
    let before = value(&server);
    let second = revoke("second").await.unwrap();
    assert_eq!(second.previous, None);
    assert!(second.free_at <= LONG && second.free_at > LONG / 2);
    assert_eq!(value(&server), before);
    drop(held);
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
        for release in [admin.force_release(NAME), admin.force_release(NAME).now()] {
            let error = release.await.unwrap_err();
            assert!(
                matches!(error, AdminError::Foreign { .. }),
                "{command:?}: {error}"
            );
            assert!(!error.to_string().contains('\u{1b}'), "{error}");
        }
        let token: FencingToken = "1".parse().unwrap();
        let expecting = admin.force_release(NAME).foreign(true).expect_token(token);
        assert!(matches!(expecting.await, Err(AdminError::Changed { .. })));
        assert_eq!(server.cli(&["DUMP", KEY]), before);
        // A waiter behind a value with an expiry gets the lock at once.
        let mut waiter = None;
        if command.contains(&"PX") {
            waiter = Some(start_waiter(&server, locks.lock(NAME).wait(SOON), 1).await);
        }
        let removed = admin.force_release(NAME).foreign(true).await.unwrap();
        assert_eq!(
            (removed.granted, removed.free_at),
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
    let removing = locks.admin().force_release(NAME).foreign(true);
    let removing = tokio::spawn(removing.into_future());
    let was_read = |server: &RedisServer| {
        let stats = server.cli(&["INFO", "commandstats"]);
        stats.text().contains("cmdstat_dump:")
    };
    eventually_async(SOON, async || was_read(&server)).await;
    server.cli(&["SET", KEY, "second", "PX", "60000"]);
    let error = removing.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("`second`"), "{error}");
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
        assert!(!revoked.previous.unwrap().is_foreign);
        assert_eq!(
            value(&server),
            "00000000-0000-0000-0000-000000000000 revoked by ops"
        );
        lost_in_time(&held).await;
        assert!(exists(&server, KEY), "{dialect}");
        drop(held);
        let freed = locks.admin().force_release(NAME).now().await.unwrap();
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

/// A revocation keeps the time to the expiry, and there is none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_without_an_expiry_is_only_freed_at_once() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    server.cli(&["PERSIST", KEY]);
    let before = value(&server);
    let error = locks.admin().force_release(NAME).await.unwrap_err();
    assert!(matches!(error, AdminError::NoExpiry { .. }), "{error}");
    assert_eq!(value(&server), before);
    locks.admin().force_release(NAME).now().await.unwrap();
    assert!(!exists(&server, KEY));
    drop(held);
}

/// A holder that does not renew learns of it when its lease ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holder_without_renewal_is_told_when_its_lease_ends() {
    let ttl = Duration::from_secs(1);
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let request = locks.lock(NAME).ttl(ttl).renew(Renew::Never);
    let held = request.acquire().await.unwrap();
    locks.admin().force_release(NAME).await.unwrap();
    lost_in_time(&held).await;
    assert!(held.release().await.is_err());
}

/// More dead waiters stand ahead of a live one than one call removes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn now_passes_many_dead_waiters() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    let mut crowd = vec!["ZADD".to_owned(), QUEUE.to_owned()];
    for number in 0..350 {
        let id = format!("{number:08}-0000-4000-8000-000000000000");
        // Not expired, and without a subscriber.
        crowd.push(number.to_string());
        crowd.push(format!("{id} s 2000 9999999999999 lk1:c:1 dead"));
    }
    server.cli(&crowd);
    let waiter = start_waiter(&server, locks.lock(NAME).wait(SOON), 351).await;
    let released = locks.admin().force_release(NAME).now().await.unwrap();
    assert!(released.granted);
    assert_eq!(released.previous.unwrap().token, held.fencing_token());
    granted(AT_ONCE, waiter).await.release().await.unwrap();
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_works_on_a_server_without_memory() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    assert!(locks.lock("other").acquire().await.is_err());
    assert!(locks.inspect(NAME).await.unwrap().holder().is_some());
    assert!(
        locks
            .admin()
            .force_release(NAME)
            .await
            .unwrap()
            .previous
            .is_some()
    );
    locks.admin().force_release(NAME).now().await.unwrap();
    assert!(!exists(&server, KEY));
    drop(held);
}

/// A reader of locks may be no operator.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_without_the_rights_is_an_error() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    server.cli(&[
        "ACL", "SETUSER", "reader", "on", ">pass", "~*", "&*", "+@all", "-set", "-del",
    ]);
    let url = format!("redis://reader:pass@{}", server.address());
    let reader = LockManager::connect(&url).await.unwrap();
    assert!(reader.holder(NAME).await.unwrap().is_some());
    for release in [
        reader.admin().force_release(NAME),
        reader.admin().force_release(NAME).now(),
    ] {
        let Err(AdminError::Lock(error)) = release.await else {
            panic!("the user has no right");
        };
        let kind = backend_error_kind::<()>(Err(error));
        assert_eq!(kind, BackendErrorKind::Permission);
    }
    held.renew().await.unwrap();
    held.release().await.unwrap();
}

/// In memory the holder learns of it at once, and the lock stays locked for its ttl.
#[tokio::test(start_paused = true)]
async fn release_works_in_memory() {
    let ttl = Duration::from_secs(10);
    let locks = LockManager::in_memory();
    let held = locks.lock(NAME).ttl(ttl).acquire().await.unwrap();
    let waiter = tokio::spawn(locks.lock(NAME).wait(LONG).acquire());
    tokio::time::sleep(ms(100)).await;
    let revoked = locks
        .admin()
        .force_release(NAME)
        .by("ops")
        .reason("x")
        .await
        .unwrap();
    assert_eq!(revoked.previous.unwrap().token, held.fencing_token());
    assert_eq!(revoked.free_at, ttl);
    assert!(held.is_lost());
    let info = locks.inspect(NAME).await.unwrap();
    assert_eq!(blocked_text(&info.state), "revoked by ops: x");
    let revoked_at = tokio::time::Instant::now();
    let next = waiter.await.unwrap().unwrap();
    let took = revoked_at.elapsed();
    assert!(took >= ttl && took < ttl + ms(100), "{took:?}");
    drop(held);

    let waiter = tokio::spawn(locks.lock(NAME).wait(LONG).acquire());
    tokio::time::sleep(ms(100)).await;
    let freed = locks.admin().force_release(NAME).now().await.unwrap();
    assert!(freed.granted && next.is_lost());
    waiter.await.unwrap().unwrap().release().await.unwrap();
    assert!(next.release().await.unwrap_err().is_lost());
    assert_eq!(locks.inspect(NAME).await.unwrap().state, LockStatus::Free);

    // A lease that ends by itself is kept as it is.
    let short = locks.lock(NAME).ttl(ttl).renew(Renew::Never);
    let held = short.acquire().await.unwrap();
    tokio::time::sleep(ttl / 2).await;
    let revoked = locks.admin().force_release(NAME).await.unwrap();
    assert_eq!(revoked.free_at, ttl / 2);
    drop(held);
}

/// A waiter in memory has the lock before its task reads that it has it. Nothing renews that lock.
#[tokio::test(start_paused = true)]
async fn waiter_that_has_not_read_its_grant_is_told_too() {
    for now in [false, true] {
        let locks = LockManager::in_memory();
        let held = locks.lock(NAME).acquire().await.unwrap();
        let waiter = tokio::spawn(locks.lock(NAME).wait(LONG).acquire());
        tokio::time::sleep(ms(100)).await;
        drop(held);
        let request = locks.admin().force_release(NAME);
        let request = if now { request.now() } else { request };
        let revoked = request.await.unwrap();
        assert!(revoked.previous.is_some(), "the waiter has the lock");
        let told = waiter.await.unwrap().unwrap();
        let next = locks.lock(NAME).wait(LONG).acquire().await.unwrap();
        assert!(told.is_lost(), "now: {now}");
        drop((told, next));
        assert_eq!(locks.inspect(NAME).await.unwrap().state, LockStatus::Free);
    }
}

/// The holder wanted its lock to stay locked for longer than the ttl of other locks.
#[tokio::test(start_paused = true)]
async fn revocation_in_memory_keeps_a_min_hold() {
    let min_hold = Duration::from_secs(600);
    let locks = LockManager::in_memory();
    let job = locks.lock(NAME).ttl(min_hold * 2).min_hold(min_hold);
    job.run(async |_| ()).await.unwrap();
    let revoked = locks.admin().force_release(NAME).await.unwrap();
    assert_eq!(revoked.free_at, min_hold);
}
