//! A manager that is made while its server is away, and calls with a time of their own for outages.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lock_core::config::{ManagerConfig, Tls};
use lock_core::error::BackendErrorKind;
use lock_core::telemetry::LockEvent;
use lock_core::{LockError, LockManager};
use test_support::fixtures::{KEY, LONG, NAME, NOTICE, SLACK, SOON, keys, ms};
use test_support::{RedisServer, eventually_async, holds_within};
use tests::{backend_error_kind, one_attempt, shut_down, start_waiter};

use super::{connect, probe};

/// A server that is down. It can be started at its port.
fn absent() -> RedisServer {
    let server = RedisServer::start();
    server.kill9();
    server
}

fn lazy(url: &str) -> LockManager {
    probe::install();
    one_attempt(LockManager::builder())
        .connect_lazy(url)
        .unwrap()
}

/// Outside of a runtime.
#[test]
fn manager_is_made_without_server_and_runtime_and_connects_by_itself() {
    let server = absent();
    let events = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&events);
    let locks = LockManager::builder()
        .observer(move |event: &LockEvent<'_>| {
            if matches!(event, LockEvent::NotConnected { .. }) {
                counted.fetch_add(1, Ordering::SeqCst);
            }
        })
        .connect_lazy(server.url())
        .unwrap();
    let health = locks.health();
    assert!(!health.is_connected && !health.was_connected && health.is_worker_alive);
    assert!(holds_within(SOON, || events.load(Ordering::SeqCst) == 1));
    server.restart();
    assert!(holds_within(SOON, || locks.health().is_connected));
    assert!(locks.health().was_connected);
    server.kill9();
    assert!(holds_within(SOON, || !locks.health().is_connected));
    assert!(locks.health().was_connected, "it was");
    assert_eq!(events.load(Ordering::SeqCst), 1, "once for each reason");
}

#[tokio::test]
async fn error_says_that_the_server_was_never_reached() {
    let server = absent();
    let locks = lazy(&server.url());
    let never = "the server has not been reached yet";
    let wait = ms(300);
    let started = Instant::now();
    for error in [
        locks.lock(NAME).try_acquire().await.unwrap_err(),
        locks.lock(NAME).wait(wait).acquire().await.unwrap_err(),
        locks
            .lock_all([NAME, "b"])
            .wait(wait)
            .acquire()
            .await
            .unwrap_err(),
    ] {
        assert!(error.to_string().contains(never), "{error}");
        assert_eq!(
            backend_error_kind::<()>(Err(error)),
            BackendErrorKind::Unreachable
        );
    }
    assert!(started.elapsed() >= wait * 2);
    server.restart();
    let request = locks.lock(NAME).wait(SOON);
    request.acquire().await.unwrap().release().await.unwrap();
    server.kill9();
    let error = locks.lock(NAME).wait(wait).acquire().await.unwrap_err();
    assert!(!error.to_string().contains(never), "{error}");
}

/// What needs no server is checked when the manager is made.
#[tokio::test]
async fn url_settings_and_certificates_are_checked_at_once() {
    let builder = || one_attempt(LockManager::builder());
    let error = builder().connect_lazy("redsi://h").unwrap_err();
    assert_eq!(
        backend_error_kind::<()>(Err(error)),
        BackendErrorKind::InvalidUrl
    );
    let error = builder().prefix("{").connect_lazy("redis://h").unwrap_err();
    assert!(matches!(error, LockError::Invalid(_)), "{error}");
    let error = builder()
        .connect_lazy("rediss://h?ssl_ca_certs=/no/such/file")
        .unwrap_err();
    assert_eq!(backend_error_kind::<()>(Err(error)), BackendErrorKind::Tls);
    let tls = Tls::new();
    let error = builder().tls(tls).connect_lazy("redis://h").unwrap_err();
    assert_eq!(
        backend_error_kind::<()>(Err(error)),
        BackendErrorKind::InvalidUrl
    );
    let in_memory = builder().connect_lazy("memory://").unwrap();
    assert!(in_memory.health().was_connected);
}

/// The error is that of a manager that connects at once.
#[tokio::test]
async fn certificates_that_are_not_read_in_time_are_an_error() {
    let directory = test_support::Scratch::new();
    let pipe = directory.path().join("ca.pem");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let url = format!("rediss://h?ssl_ca_certs={}", pipe.display());
    let builder = || LockManager::builder().command_timeout(ms(200));
    let started = Instant::now();
    let error = builder().connect_lazy(&url).unwrap_err();
    assert!(started.elapsed() < ms(200) + SLACK);
    let eager = builder().connect(&url).await.unwrap_err();
    assert_eq!(error.to_string(), eager.to_string());
    // Lets the threads that read it end.
    drop(std::fs::write(&pipe, ""));
}

#[tokio::test]
async fn wrong_password_fails_calls_at_once() {
    let server = RedisServer::options().password("right").start();
    let url = format!("redis://:wrong@{}", server.address());
    let locks = lazy(&url);
    let started = Instant::now();
    let request = locks.lock(NAME).wait(LONG).outage_wait(LONG);
    assert_eq!(
        backend_error_kind(request.acquire().await),
        BackendErrorKind::Authentication
    );
    let request = locks.lock(NAME).outage_wait(LONG);
    assert_eq!(
        backend_error_kind(request.try_acquire().await),
        BackendErrorKind::Authentication
    );
    assert!(started.elapsed() < ms(1_000) + SLACK);
    // The operator mends it.
    server.cli(&["CONFIG", "SET", "requirepass", "wrong"]);
    eventually_async(SOON, async || locks.lock(NAME).try_acquire().await.is_ok()).await;
}

#[tokio::test]
async fn configuration_may_say_that_the_manager_is_made_lazily() {
    let server = absent();
    let mut config = ManagerConfig::default();
    config.url = Some(server.url());
    config.lazy = Some(true);
    let locks = LockManager::builder().config(config).build().await.unwrap();
    assert!(!locks.health().was_connected);
}

/// One attempt of a job that many machines start: it skips if another one has the lock, and waits for the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempt_waits_for_the_server_and_not_for_the_holder() {
    let server = absent();
    let locks = lazy(&server.url());
    let job = || locks.lock(NAME).outage_wait(SOON);
    let started = Instant::now();
    let waiting = tokio::spawn(job().try_acquire());
    tokio::time::sleep(ms(1_500)).await;
    assert!(!waiting.is_finished());
    server.restart();
    let held = waiting.await.unwrap().unwrap().expect("the lock is free");
    assert!(started.elapsed() >= ms(1_500));
    let busy = Instant::now();
    assert!(job().try_acquire().await.unwrap().is_none());
    let error = job().wait(ms(300)).acquire().await.unwrap_err();
    assert!(error.is_contended(), "{error}");
    let error = job().wait(Duration::ZERO).acquire().await.unwrap_err();
    assert!(matches!(error, LockError::Contended { .. }), "{error}");
    assert!(busy.elapsed() < ms(300) + SLACK + NOTICE);
    held.release().await.unwrap();
    shut_down(&locks).await;
    assert_eq!(keys(&server), [""; 0]);
}

#[tokio::test]
async fn outage_that_is_too_long_is_an_error_in_time() {
    let server = absent();
    let locks = lazy(&server.url());
    let outage_wait = ms(1_500);
    for wait in [Duration::ZERO, ms(200), LONG] {
        let started = Instant::now();
        let request = locks.lock(NAME).wait(wait).outage_wait(outage_wait);
        assert_eq!(
            backend_error_kind(request.acquire().await),
            BackendErrorKind::Unreachable
        );
        let took = started.elapsed();
        assert!(
            took >= outage_wait - ms(500) && took < outage_wait + NOTICE + SLACK,
            "{took:?}"
        );
        let started = Instant::now();
        let set = locks.lock_all([NAME, "b"]).wait(wait);
        assert_eq!(
            backend_error_kind(set.outage_wait(outage_wait).acquire().await),
            BackendErrorKind::Unreachable
        );
        let took = started.elapsed();
        assert!(
            took >= outage_wait - ms(500) && took < outage_wait + NOTICE + SLACK,
            "{took:?}"
        );
    }
}

/// The holder's lease outlives the outage, and the waiter has the rest of its wait after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outage_does_not_use_up_the_wait() {
    let server = RedisServer::options()
        .args(["--appendonly", "yes", "--appendfsync", "always"])
        .start();
    let holder = connect(&server).await;
    let locks = connect(&server).await;
    let held = holder.lock(NAME).ttl(LONG).acquire().await.unwrap();
    let wait = ms(3_000);
    let request = locks.lock(NAME).wait(wait).outage_wait(SOON);
    let started = Instant::now();
    let waiting = start_waiter(&server, request, 1).await;
    server.kill9();
    // Longer than the whole wait.
    tokio::time::sleep(wait + ms(500)).await;
    server.restart();
    let back = Instant::now();
    let error = waiting.await.unwrap().unwrap_err();
    assert!(error.is_contended(), "{error}");
    assert!(started.elapsed() < wait * 3 + SOON);
    assert!(back.elapsed() >= ms(1_000), "{:?}", back.elapsed());
    assert!(
        back.elapsed() < wait + NOTICE + SLACK,
        "{:?}",
        back.elapsed()
    );
    held.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn set_waits_for_the_server_and_not_for_the_holder() {
    let server = absent();
    let locks = lazy(&server.url());
    let set = || locks.lock_all([NAME, "b"]).outage_wait(SOON);
    let attempt = tokio::spawn(set().try_acquire());
    let waits = tokio::spawn(
        locks
            .lock_all(["c", "d"])
            .wait(ms(500))
            .outage_wait(SOON)
            .acquire(),
    );
    tokio::time::sleep(ms(1_500)).await;
    assert!(!attempt.is_finished() && !waits.is_finished());
    server.restart();
    let held = attempt.await.unwrap().unwrap().expect("both are free");
    waits.await.unwrap().unwrap().release().await.unwrap();
    let busy = Instant::now();
    assert!(set().try_acquire().await.unwrap().is_none());
    let error = set().wait(ms(300)).acquire().await.unwrap_err();
    assert!(error.is_contended(), "{error}");
    assert!(busy.elapsed() < ms(300) + SLACK + NOTICE);
    held.release().await.unwrap();
}

/// The set loses the lock that it had, and begins again within the same times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn set_that_loses_a_lock_in_an_outage_begins_again_after_it() {
    let server = RedisServer::start();
    let (holder, locks) = (connect(&server).await, connect(&server).await);
    let held = holder.lock("b").acquire().await.unwrap();
    let wait = ms(1_500);
    let set = locks.lock_all(["a", "b"]).ttl(ms(1_000)).wait(wait);
    let waiting = tokio::spawn(set.outage_wait(SOON).acquire());
    eventually_async(SOON, async || {
        server.cli(&["EXISTS", "{lock:b}:q"]).integer() == 1
    })
    .await;
    // Nothing is persistent.
    server.kill9();
    tokio::time::sleep(wait + ms(1_500)).await;
    assert!(!waiting.is_finished());
    server.restart();
    let both = waiting.await.unwrap().unwrap();
    assert_eq!(both.guards().len(), 2);
    both.release().await.unwrap();
    drop(held);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_ends_waiters_and_keeps_held_locks() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).ttl(ms(1_000)).acquire().await.unwrap();
    let waiting = start_waiter(&server, locks.lock(NAME).wait(LONG), 1).await;
    let set = tokio::spawn(locks.lock_all(["a", NAME]).wait(LONG).acquire());
    eventually_async(SOON, async || locks.health().waiting >= 2).await;
    locks.close();
    let closed = Instant::now();
    let error = waiting.await.unwrap().unwrap_err();
    assert!(matches!(error, LockError::ShuttingDown), "{error}");
    let error = set.await.unwrap().unwrap_err();
    assert!(matches!(error, LockError::ShuttingDown), "{error}");
    let error = locks.lock("new").acquire().await.unwrap_err();
    assert!(matches!(error, LockError::ShuttingDown), "{error}");
    assert!(closed.elapsed() < SLACK + NOTICE, "{:?}", closed.elapsed());
    // Three times its ttl.
    tokio::time::sleep(ms(3_000)).await;
    assert!(!held.is_lost());
    assert_eq!(server.cli(&["EXISTS", KEY]).integer(), 1);
    held.release().await.unwrap();
    shut_down(&locks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_ends_calls_that_wait_for_the_server() {
    let server = absent();
    let locks = lazy(&server.url());
    let request = || locks.lock(NAME).outage_wait(LONG);
    // Before and after the first failure.
    let early = tokio::spawn(request().try_acquire());
    let set = tokio::spawn(locks.lock_all([NAME, "b"]).outage_wait(LONG).try_acquire());
    tokio::time::sleep(ms(300)).await;
    let late = tokio::spawn(request().wait(ms(100)).acquire());
    tokio::time::sleep(ms(300)).await;
    locks.close();
    let closed = Instant::now();
    let ended = [
        early.await.unwrap().map(drop),
        late.await.unwrap().map(drop),
        set.await.unwrap().map(drop),
    ];
    for ended in ended {
        assert!(matches!(ended, Err(LockError::ShuttingDown)), "{ended:?}");
    }
    // A set whose command is under way ends with it.
    assert!(
        closed.elapsed() < ms(1_000) + SLACK,
        "{:?}",
        closed.elapsed()
    );
}
