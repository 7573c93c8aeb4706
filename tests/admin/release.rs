//! Taking a lock from its holder.

use std::fs;
use std::time::Duration;

use lock_core::admin::{AdminError, LockStatus};
use lock_core::error::BackendErrorKind;
use lock_core::{LockManager, Renew};
use test_support::fixtures::{
    AT_ONCE, KEY, LONG, NAME, QUEUE, SLACK, SOON, exists, ms, time_to_expiry,
};
use test_support::{Helper, RedisServer, Stopwatch, helper};
use tests::{backend_error_kind, connect, fencing_token, granted, lost_in_time, start_waiter};

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
    let revoked_at = Stopwatch::start();
    let revoked = request.reason("stuck import").await.unwrap();
    let previous = revoked.previous.unwrap();
    assert_eq!(previous.token, token);
    assert!(revoked.free_in > ttl / 2 && revoked.free_in <= ttl);
    assert!(!revoked.is_granted);
    let left = time_to_expiry(&server, KEY);
    assert!(left <= revoked.free_in, "{left:?}: {:?}", revoked.free_in);
    let words = value(&server);
    let number = token.unwrap();
    let start = format!("lk1:00000000-0000-0000-0000-000000000000 {number} ");
    assert!(words.starts_with(&start), "{words}");
    assert!(
        words.ends_with(" revoked by ops@host: stuck import"),
        "{words}"
    );
    let info = operator.admin().inspect(NAME).await.unwrap();
    assert_eq!(
        blocked_text(&info.status),
        "revoked by ops@host: stuck import"
    );

    // The next renewal reports the loss to the holder, and does not grant the lock to the waiter.
    lost_in_time(&held).await;
    let told = revoked_at.elapsed();
    assert!(told < ttl / 3 + SLACK + revoked_at.stalled(), "{told:?}");
    assert!(!waiter.is_finished());
    let next = granted(ttl, waiter).await;
    let took = revoked_at.elapsed();
    assert!(took + ms(1) >= revoked.free_in, "{took:?}");
    assert!(
        took < revoked.free_in + SLACK + revoked_at.stalled(),
        "{took:?}"
    );
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
    let released = operator
        .admin()
        .force_release(NAME)
        .free_at_once()
        .await
        .unwrap();
    assert!(released.is_granted);
    assert_eq!(released.free_in, Duration::ZERO);
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
    let released = operator
        .admin()
        .force_release(NAME)
        .free_at_once()
        .await
        .unwrap();
    assert!(!released.is_granted && !exists(&server, KEY));
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_of_a_free_lock_changes_nothing() {
    let server = RedisServer::start();
    let server_locks = connect(&server).await;
    for locks in [server_locks, LockManager::in_memory()] {
        for release in [
            locks.admin().force_release(NAME),
            locks.admin().force_release(NAME).free_at_once(),
            locks.admin().force_release(NAME).remove_foreign(),
        ] {
            let released = release.await.unwrap();
            assert_eq!((released.previous, released.is_granted), (None, false));
            assert_eq!(released.free_in, Duration::ZERO);
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
    assert!(second.free_in <= LONG && second.free_in > LONG / 2);
    assert_eq!(value(&server), before);
    drop(held);
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
    locks
        .admin()
        .force_release(NAME)
        .free_at_once()
        .await
        .unwrap();
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
    let released = locks
        .admin()
        .force_release(NAME)
        .free_at_once()
        .await
        .unwrap();
    assert!(released.is_granted);
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
    assert!(
        locks
            .admin()
            .inspect(NAME)
            .await
            .unwrap()
            .holder()
            .is_some()
    );
    assert!(
        locks
            .admin()
            .force_release(NAME)
            .await
            .unwrap()
            .previous
            .is_some()
    );
    locks
        .admin()
        .force_release(NAME)
        .free_at_once()
        .await
        .unwrap();
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
        reader.admin().force_release(NAME).free_at_once(),
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
    assert_eq!(revoked.free_in, ttl);
    assert!(held.is_lost());
    let info = locks.admin().inspect(NAME).await.unwrap();
    assert_eq!(blocked_text(&info.status), "revoked by ops: x");
    let revoked_at = tokio::time::Instant::now();
    let next = waiter.await.unwrap().unwrap();
    let took = revoked_at.elapsed();
    assert!(took >= ttl && took < ttl + ms(100), "{took:?}");
    drop(held);

    let waiter = tokio::spawn(locks.lock(NAME).wait(LONG).acquire());
    tokio::time::sleep(ms(100)).await;
    let freed = locks
        .admin()
        .force_release(NAME)
        .free_at_once()
        .await
        .unwrap();
    assert!(freed.is_granted && next.is_lost());
    waiter.await.unwrap().unwrap().release().await.unwrap();
    assert!(next.release().await.unwrap_err().is_lost());
    assert_eq!(
        locks.admin().inspect(NAME).await.unwrap().status,
        LockStatus::Free
    );

    // A lease that ends by itself is kept as it is.
    let short = locks.lock(NAME).ttl(ttl).renew(Renew::Never);
    let held = short.acquire().await.unwrap();
    tokio::time::sleep(ttl / 2).await;
    let revoked = locks.admin().force_release(NAME).await.unwrap();
    assert_eq!(revoked.free_in, ttl / 2);
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
        let request = if now { request.free_at_once() } else { request };
        let revoked = request.await.unwrap();
        assert!(revoked.previous.is_some(), "the waiter has the lock");
        let told = waiter.await.unwrap().unwrap();
        let next = locks.lock(NAME).wait(LONG).acquire().await.unwrap();
        assert!(told.is_lost(), "now: {now}");
        drop((told, next));
        assert_eq!(
            locks.admin().inspect(NAME).await.unwrap().status,
            LockStatus::Free
        );
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
    assert_eq!(revoked.free_in, min_hold);
}

/// No renewal tells the holders in memory.
#[tokio::test]
async fn released_readers_and_permits_learn_of_it_in_memory() {
    let locks = LockManager::in_memory();
    let request = || locks.lock(NAME).read();
    let readers = [request().await.unwrap(), request().await.unwrap()];
    locks
        .admin()
        .force_release(NAME)
        .free_at_once()
        .await
        .unwrap();
    for reader in &readers {
        lost_in_time(reader).await;
    }
    let permit = locks.lock(NAME).permits(2).acquire().await.unwrap();
    locks.admin().force_release(NAME).await.unwrap();
    lost_in_time(&permit).await;
}
