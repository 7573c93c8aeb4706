//! Renewal, loss and release of held locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lock_core::config::Handover;
use lock_core::{LockError, LockGuard, LockManager, LossReason, Renew};
use test_support::fixtures::{
    AT_ONCE, KEY, NAME, QUEUE, SLACK, SOON, current_thread_runtime, keys, ms,
};
use test_support::{FrozenClock, RedisServer, Stopwatch, eventually, eventually_async};
use tests::{assert_nothing_left, granted, shut_down, start_waiter, supported_dialects};
use tokio::sync::oneshot;

use super::connect;

/// Short enough for a test to wait for a renewal, and long enough that a busy machine renews in
/// time.
const TTL: Duration = ms(600);

/// Two runtimes renew over their own connections. In the deadline dialect, a renewal replaces the
/// value with which the next renewal compares.
#[test]
fn concurrent_renewals_do_not_lose_the_lock() {
    let server = RedisServer::start();
    for dialect in supported_dialects() {
        let here = current_thread_runtime();
        let guard = here.block_on(async {
            let locks = LockManager::builder().dialect(dialect);
            let locks = locks.connect(&server.url()).await.unwrap();
            let request = locks.lock(NAME).ttl(Duration::from_secs(10));
            request.acquire().await.unwrap()
        });
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    current_thread_runtime().block_on(async {
                        for _ in 0..200 {
                            guard
                                .renew()
                                .await
                                .unwrap_or_else(|e| panic!("{dialect}: {e}"));
                        }
                    });
                });
            }
        });
        here.block_on(guard.release()).unwrap();
        assert_eq!(keys(&server), Vec::<String>::new(), "{dialect}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_keeps_the_lock_beyond_its_ttl() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let request = locks.lock(NAME).ttl(ms(1_500));
    let value = || server.cli(&["GET", KEY]);
    let body = async |held: &LockGuard| {
        let before = value();
        tokio::time::sleep(ms(3_500)).await;
        assert_eq!(value(), before);
        held.is_lost()
    };
    assert!(!request.run(body).await.unwrap());
    assert_nothing_left(&server, &locks).await;
}

/// The background worker has its own thread.
#[test]
fn blocked_executor_keeps_its_lock() {
    let server = RedisServer::start();
    current_thread_runtime().block_on(async {
        let locks = connect(&server).await;
        let request = locks.lock(NAME).ttl(ms(1_500));
        let held = request.acquire().await.unwrap();
        let before = server.cli(&["GET", KEY]);
        thread::sleep(ms(3_500));
        assert!(!held.is_lost());
        assert_eq!(server.cli(&["GET", KEY]), before);
        held.release().await.unwrap();
        assert_eq!(keys(&server), Vec::<String>::new());
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_key_is_a_lost_lock() {
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let was_dropped = Arc::new(AtomicBool::new(false));
    let body_ends = Dropped(Arc::clone(&was_dropped));
    let (begun, begins) = oneshot::channel();
    let request = locks.lock(NAME).ttl(TTL);
    let running = tokio::spawn(request.run(async move |_| {
        let _ends = body_ends;
        begun.send(()).unwrap();
        std::future::pending::<()>().await;
    }));
    begins.await.unwrap();
    let deleted = Stopwatch::start();
    assert_eq!(server.cli(&["DEL", KEY]).integer(), 1);
    let out = tokio::time::timeout(SOON, running).await.unwrap().unwrap();
    let took = deleted.elapsed();
    assert!(matches!(out, Err(LockError::Lost { .. })), "{out:?}");
    assert!(was_dropped.load(Ordering::Acquire));
    // The next renewal reports the loss, and it is due within a third of the ttl.
    assert!(took < TTL / 3 + SLACK + deleted.stalled(), "{took:?}");
    assert_eq!(
        keys(&server),
        Vec::<String>::new(),
        "the key was created again"
    );
}

#[test]
fn guard_dropped_with_its_runtime_is_released() {
    let server = RedisServer::start();
    let runtime = current_thread_runtime();
    // One manager outlives the runtime, and another ends with it.
    let outer = runtime.block_on(connect(&server));
    runtime.block_on(async {
        let inner = connect(&server).await;
        for (number, locks) in [&outer, &inner].into_iter().enumerate() {
            let held = locks.lock(format!("n{number}")).acquire().await.unwrap();
            tokio::spawn(async move {
                std::future::pending::<()>().await;
                drop(held);
            });
        }
        tokio::task::yield_now().await;
    });
    assert_eq!(keys(&server).len(), 2);
    drop(runtime);
    eventually(AT_ONCE, || keys(&server).is_empty());
}

#[test]
fn guard_dropped_outside_any_runtime_is_released() {
    let server = RedisServer::start();
    let runtime = current_thread_runtime();
    let take = async {
        let locks = connect(&server).await;
        locks.lock(NAME).acquire().await.unwrap()
    };
    let held = runtime.block_on(take);
    drop(runtime);
    assert!(!held.is_lost());
    assert_eq!(keys(&server), [KEY]);
    thread::spawn(move || drop(held)).join().unwrap();
    eventually(AT_ONCE, || keys(&server).is_empty());
}

/// A waiter is dropped with its runtime. If it was granted the lock, the lock goes to the next
/// waiter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_dropped_with_its_runtime_is_skipped() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    let ending = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    ending.spawn(locks.lock(NAME).wait(SOON).acquire());
    eventually_async(SOON, async || server.cli(&["ZCARD", QUEUE]).integer() == 1).await;
    let staying = start_waiter(&server, locks.lock(NAME).wait(SOON), 2).await;
    ending.shutdown_background();
    held.release().await.unwrap();
    granted(AT_ONCE, staying).await.release().await.unwrap();
    assert_nothing_left(&server, &locks).await;
}

/// Every key has an expiry. Only the fencing counters stay after their use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_expires_and_only_counters_stay() {
    let server = RedisServer::start();
    let shared = LockManager::builder().handover(Handover::YieldToOthers);
    let shared = shared.connect(&server.url()).await.unwrap();
    for locks in [connect(&server).await, shared] {
        let tagged = locks.lock("{tag}:job").acquire().await.unwrap();
        let held = locks.lock(NAME).acquire().await.unwrap();
        let first = start_waiter(&server, locks.lock(NAME).wait(SOON), 1).await;
        let second = start_waiter(&server, locks.lock(NAME).wait(SOON), 2).await;
        let short = locks.lock(NAME).wait(ms(50));
        assert!(short.try_acquire().await.unwrap().is_none());
        let all = server.cli(&["KEYS", "*"]);
        assert!(all.array().len() >= 5, "{all:?}");
        for key in all.array() {
            let left = server.cli(&["PTTL", key.text()]).integer();
            assert!(left > 0, "{key:?} has no expiry: {left}");
            assert!(left <= 86_400_000, "{key:?} lives for {left} ms");
        }
        drop(tagged);
        drop(held);
        drop(granted(AT_ONCE, first).await);
        granted(AT_ONCE, second).await.release().await.unwrap();
        shut_down(&locks).await;
        // The grace period after the last handover ends by itself.
        eventually_async(AT_ONCE, async || keys(&server).is_empty()).await;
    }
}

/// The server may have the lock for a moment longer than the guard counts on it. Here its clock stands still.
#[tokio::test]
async fn guard_whose_lease_has_ended_reports_the_loss_although_the_server_has_its_lock() {
    let clock = FrozenClock::at(1_800_000_000_000_000);
    let server = RedisServer::options().clock(&clock).start();
    let locks = connect(&server).await;
    let request = || locks.lock(NAME).ttl(ms(200)).renew(Renew::Never);
    let expired = |result: Result<(), LockError>| {
        let error = result.unwrap_err();
        assert!(
            matches!(&error, LockError::Lost { reason, .. } if *reason == LossReason::Expired),
            "{error}"
        );
    };
    let held = request().acquire().await.unwrap();
    held.lost().await;
    assert_eq!(server.cli(&["EXISTS", KEY]).integer(), 1);
    expired(held.release().await);
    // Work that was done under a lock that has ended leaves no mark.
    let held = request()
        .once_per(Duration::from_secs(3_600))
        .acquire()
        .await
        .unwrap();
    held.lost().await;
    expired(held.complete().await);
    let both = locks
        .lock_all([NAME, "other"])
        .ttl(ms(200))
        .renew(Renew::Never);
    let both = both
        .acquire()
        .await
        .expect("the release was sent all the same");
    both.lost().await;
    expired(both.release().await);
    assert_eq!(server.cli(&["EXISTS", KEY]).integer(), 0);
    shut_down(&locks).await;
}
