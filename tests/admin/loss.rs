//! Why a holder lost its lock.

use std::time::Duration;

use lock_core::{
    LockError, LockGuard, LockManager, LockWatch, LossReason, Renew, distributed_lock,
};
use test_support::fixtures::{KEY, LONG, NAME, SOON, ms};
use test_support::{Proxy, RedisServer, eventually};
use tests::{SET_NX_PX, WATCH_MULTI, connect, connect_to, lost_in_time};

const TTL: Duration = Duration::from_millis(1_500);

fn revoked(by: &str, reason: Option<&str>) -> String {
    match reason {
        Some(reason) => format!("revoked by {by}: {reason}"),
        None => format!("revoked by {by}"),
    }
}

/// Waits for the loss, and checks that the guard and its watch give one reason.
async fn reason_of(held: LockGuard) -> LossReason {
    assert_eq!(held.loss_reason(), None);
    lost_in_time(&held).await;
    let watch = held.watch();
    let reason = held.loss_reason().expect("the lock is lost");
    assert_eq!(watch.loss_reason().as_ref(), Some(&reason));
    // The reason stays when the guard is gone.
    let _lost = held.release().await;
    assert_eq!(watch.loss_reason().as_ref(), Some(&reason));
    reason
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_tells_why_the_lock_is_lost() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let acquire = async || locks.lock(NAME).ttl(TTL).acquire().await.unwrap();

    let held = acquire().await;
    server.cli(&["DEL", KEY]);
    assert_eq!(reason_of(held).await, LossReason::Removed);

    for command in [
        &["SET", KEY, "theirs", "PX", "60000"][..],
        &["LPUSH", KEY, "x"],
    ] {
        let held = acquire().await;
        server.cli(&["DEL", KEY]);
        server.cli(command);
        assert_eq!(reason_of(held).await, LossReason::Replaced);
        server.cli(&["DEL", KEY]);
    }

    let held = acquire().await;
    server.cli(&["DEL", KEY]);
    let next = connect(&server)
        .await
        .lock(NAME)
        .ttl(LONG)
        .acquire()
        .await
        .unwrap();
    assert_eq!(reason_of(held).await, LossReason::Replaced);
    next.release().await.unwrap();

    for reason in [Some("stuck import"), None] {
        let held = acquire().await;
        let mut release = locks.admin().force_release(NAME).by("ops@host");
        if let Some(reason) = reason {
            release = release.reason(reason);
        }
        release.await.unwrap();
        let found = reason_of(held).await;
        assert_eq!(found.to_string(), revoked("ops@host", reason));
        let LossReason::Revoked {
            by, reason: told, ..
        } = found
        else {
            panic!("{found:?}");
        };
        assert_eq!((&*by, told.as_deref()), ("ops@host", reason));
        locks
            .admin()
            .force_release(NAME)
            .free_at_once()
            .await
            .unwrap();
    }
    // The default operator is the manager.
    let held = acquire().await;
    let operator = LockManager::builder().label("console");
    let operator = operator.connect(&server.url()).await.unwrap();
    operator.admin().force_release(NAME).await.unwrap();
    assert_eq!(reason_of(held).await.to_string(), "revoked by console");
}

/// Revokes its own lock, and hangs.
#[distributed_lock(name = "job", ttl = "1500ms", bind = held)]
async fn revoked_section(
    locks: &LockManager,
    watch: &mut Option<LockWatch>,
) -> Result<(), LockError> {
    *watch = Some(held.watch());
    let release = locks.admin().force_release(NAME).by("ops");
    release.await.expect("the lock is held");
    std::future::pending().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_function_returns_lost_and_its_watch_tells_why() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let mut watch = None;
    let call = locks.scope(revoked_section(&locks, &mut watch));
    let error = call.await.unwrap_err();
    assert!(matches!(error, LockError::Lost { .. }), "{error}");
    let reason = watch.unwrap().loss_reason().unwrap();
    assert_eq!(reason.to_string(), "revoked by ops");
}

/// `run` reports a loss as any other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_body_is_dropped_and_its_watch_tells_why() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let mut watch = None;
    let error = locks
        .lock(NAME)
        .ttl(TTL)
        .run(async |held| {
            watch = Some(held.watch());
            let release = locks.admin().force_release(NAME).by("ops");
            release.await.unwrap();
            std::future::pending::<()>().await;
        })
        .await
        .unwrap_err();
    assert!(matches!(error, LockError::Lost { .. }), "{error}");
    let reason = watch.unwrap().loss_reason().unwrap();
    assert_eq!(reason.to_string(), "revoked by ops");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_that_ends_by_itself_is_expired_or_at_its_longest_hold() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_to(&proxy.url()).await;
    let held = locks.lock(NAME).ttl(TTL).renew(Renew::Never).acquire();
    assert_eq!(reason_of(held.await.unwrap()).await, LossReason::Expired);
    let held = locks.lock(NAME).ttl(ms(600)).max_hold(TTL).acquire();
    assert_eq!(reason_of(held.await.unwrap()).await, LossReason::MaxHold);
    // With a longest hold that is far away, a server that does not answer ends the lease.
    let held = locks.lock(NAME).ttl(ms(600)).max_hold(LONG).acquire();
    let held = held.await.unwrap();
    proxy.black_hole();
    assert_eq!(reason_of(held).await, LossReason::Expired);
}

/// The server restarts without the lock, before the lease ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_that_forgets_the_lock_is_a_changed_server() {
    let ttl = Duration::from_secs(6);
    let server = RedisServer::start();
    let locks = connect(&server).await;
    for dialect in [lock_core::dialect::Dialect::Native, SET_NX_PX] {
        let request = locks.lock(NAME).dialect(dialect).ttl(ttl);
        let held = request.acquire().await.unwrap();
        server.restart();
        assert_eq!(reason_of(held).await, LossReason::ServerChanged);
        // A lock that the new server granted, and lost, has the usual reason.
        let request = locks.lock(NAME).dialect(dialect).ttl(TTL).wait(SOON);
        let held = request.acquire().await.unwrap();
        server.cli(&["DEL", KEY]);
        assert_eq!(reason_of(held).await, LossReason::Removed, "{dialect}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_of_other_dialects_tell_the_reason() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    for dialect in [
        SET_NX_PX,
        WATCH_MULTI,
        lock_core::dialect::Dialect::LuaSetnxExpire,
        lock_core::dialect::Dialect::SetnxExpire,
    ] {
        let acquire = async || {
            let request = locks
                .lock(NAME)
                .dialect(dialect)
                .ttl(Duration::from_secs(2));
            request.acquire().await.unwrap()
        };
        let held = acquire().await;
        server.cli(&["DEL", KEY]);
        assert_eq!(reason_of(held).await, LossReason::Removed, "{dialect}");
        let held = acquire().await;
        server.cli(&["SET", KEY, "theirs", "PX", "60000"]);
        assert_eq!(reason_of(held).await, LossReason::Replaced, "{dialect}");
        server.cli(&["DEL", KEY]);
        let held = acquire().await;
        let release = locks.admin().force_release(NAME).by("ops");
        release
            .reason("a reason that is longer than the label of its holder")
            .await
            .unwrap();
        let reason = reason_of(held).await.to_string();
        assert!(
            reason.ends_with("the label of its holder"),
            "{dialect}: {reason}"
        );
        locks
            .admin()
            .force_release(NAME)
            .free_at_once()
            .await
            .unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn holder_in_memory_learns_the_reason() {
    let locks = LockManager::in_memory();
    let held = locks.lock(NAME).acquire().await.unwrap();
    assert_eq!(held.loss_reason(), None);
    locks
        .admin()
        .force_release(NAME)
        .by("ops")
        .reason("x")
        .await
        .unwrap();
    held.lost().await;
    assert_eq!(held.loss_reason().unwrap().to_string(), "revoked by ops: x");
    locks
        .admin()
        .force_release(NAME)
        .free_at_once()
        .await
        .unwrap();

    let held = locks.lock(NAME).acquire().await.unwrap();
    locks
        .admin()
        .force_release(NAME)
        .free_at_once()
        .await
        .unwrap();
    assert_eq!(held.loss_reason(), Some(LossReason::Removed));
    let held = locks
        .lock(NAME)
        .ttl(ms(600))
        .max_hold(TTL)
        .acquire()
        .await
        .unwrap();
    held.lost().await;
    assert_eq!(held.loss_reason(), Some(LossReason::MaxHold));
    drop(held);
    let held = locks
        .lock(NAME)
        .ttl(TTL)
        .renew(Renew::Never)
        .acquire()
        .await
        .unwrap();
    held.lost().await;
    assert_eq!(held.loss_reason(), Some(LossReason::Expired));
}

/// A released lock was not lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn released_lock_has_no_reason() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).ttl(ms(300)).acquire().await.unwrap();
    let watch = held.watch();
    held.release().await.unwrap();
    eventually(SOON, || watch.remaining() == Duration::ZERO);
    tokio::time::sleep(ms(400)).await;
    assert_eq!((watch.loss_reason(), watch.is_lost()), (None, false));
}
