//! Readiness checks, and the shutdown of a manager whose server does not help.

use std::time::Duration;

use lock_core::error::BackendErrorKind;
use lock_core::{LockError, LockManager};
use test_support::fixtures::{NAME, SLACK, SOON, keys, ms, queue_length};
use test_support::{Proxy, RedisServer, Stopwatch, eventually_async};
use tests::{Trace, backend_error_kind, one_attempt, poll_once, shut_down};

use super::{connect, connect_with};

/// A ping outlives the time for which its outcome is reused.
const REUSED: Duration = Duration::from_millis(1_050);

/// A server that replies to PING, and grants no lock.
#[tokio::test]
async fn ping_fails_under_oom_readonly_and_denied_rights() {
    let server = RedisServer::start();
    server.cli(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all"]);
    let url = format!("redis://app:pw@{}", server.address());
    let cases: [(&[&str], &[&str], BackendErrorKind); 4] = [
        (
            &["CONFIG", "SET", "maxmemory", "1"],
            &["CONFIG", "SET", "maxmemory", "0"],
            BackendErrorKind::OutOfMemory,
        ),
        (
            &["CONFIG", "SET", "min-replicas-to-write", "1"],
            &["CONFIG", "SET", "min-replicas-to-write", "0"],
            BackendErrorKind::NoReplicas,
        ),
        (
            &["ACL", "SETUSER", "app", "resetkeys", "~orders:*"],
            &["ACL", "SETUSER", "app", "~*"],
            BackendErrorKind::Permission,
        ),
        (
            &["REPLICAOF", "127.0.0.1", "1"],
            &["REPLICAOF", "NO", "ONE"],
            BackendErrorKind::NotPrimary,
        ),
    ];
    let locks = connect_with(LockManager::builder(), &url).await;
    locks.ping().await.unwrap();
    for (breaks, mends, expected) in cases {
        server.cli(breaks);
        assert!(locks.ping().await.is_ok(), "the outcome is reused");
        tokio::time::sleep(REUSED).await;
        assert_eq!(backend_error_kind(locks.ping().await), expected);
        assert_eq!(
            backend_error_kind(locks.ping().await),
            expected,
            "an error is reused too"
        );
        assert_eq!(server.cli(&["PING"]).error(), None);
        server.cli(mends);
        eventually_async(SOON, async || locks.ping().await.is_ok()).await;
    }
    shut_down(&locks).await;
    assert_eq!(keys(&server), Vec::<String>::new());
}

#[tokio::test]
async fn ping_of_a_silent_server_ends_with_the_command_timeout() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let timeout = ms(200);
    let builder = LockManager::builder().command_timeout(timeout);
    let locks = connect_with(builder, &proxy.url()).await;
    proxy.black_hole();
    let started = Stopwatch::start();
    // Each of many callers gets the error in that time.
    let pings = (0..20).map(|_| locks.ping());
    for outcome in futures_of(pings).await {
        assert_eq!(backend_error_kind(outcome), BackendErrorKind::TimedOut);
    }
    let took = started.elapsed();
    assert!(took < timeout + SLACK + started.stalled(), "{took:?}");
    // A dropped ping leaves no lock behind.
    proxy.forward();
    let mut dropped = Box::pin(locks.ping());
    let _pending = poll_once(&mut dropped).await;
    drop(dropped);
    shut_down(&locks).await;
    assert_eq!(keys(&server), Vec::<String>::new());
}

async fn futures_of<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.map(Box::pin).collect();
    let mut outcomes = Vec::new();
    for future in &mut futures {
        let _pending = poll_once(future).await;
    }
    for future in futures {
        outcomes.push(future.await);
    }
    outcomes
}

/// A manager that sends nothing notices at once that its connections have ended, and the next call opens another one
/// before it sends a command.
#[tokio::test]
async fn end_of_an_idle_connection_is_noticed() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let (trace, _collecting) = Trace::begin();
    let locks = connect_with(one_attempt(LockManager::builder()), &proxy.url()).await;
    assert!(locks.health().is_connected);
    proxy.cut_all();
    eventually_async(SOON, async || !locks.health().is_connected).await;
    assert_eq!(trace.count("lock.disconnected"), 1, "{}", trace.text());
    let held = locks.lock(NAME).acquire().await.unwrap();
    assert!(locks.health().is_connected);
    held.release().await.unwrap();
}

#[tokio::test]
async fn health_follows_the_connections() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let health = locks.health();
    assert!(health.is_connected && !health.is_subscribed && health.is_worker_alive);
    assert_eq!((health.held, health.waiting), (0, 0));
    let held = locks.lock(NAME).acquire().await.unwrap();
    let mut waiting = Box::pin(locks.lock(NAME).wait(SOON).acquire());
    let _pending = poll_once(&mut waiting).await;
    let health = locks.health();
    assert_eq!((health.held, health.waiting), (1, 1));
    assert!(health.last_reply < Some(SOON), "{health:?}");
    let waiting = tokio::spawn(waiting);
    eventually_async(SOON, async || locks.health().is_subscribed).await;
    server.kill9();
    eventually_async(SOON, async || {
        let health = locks.health();
        !health.is_connected && !health.is_subscribed
    })
    .await;
    waiting.abort();
    drop(held);
    eventually_async(SOON, async || {
        let health = locks.health();
        (health.held, health.waiting) == (0, 0) && health.cleanups_open > 0
    })
    .await;
    server.restart();
    shut_down(&locks).await;
    // Callable without a runtime.
    let health = std::thread::spawn(move || locks.health()).join().unwrap();
    assert_eq!(health.cleanups_open, 0);
}

/// The wait for a connection ends at the shutdown, and not after half a minute.
#[tokio::test]
async fn shutdown_ends_calls_that_wait_for_a_connection() {
    let server = RedisServer::start();
    let builder = LockManager::builder().shutdown_timeout(ms(400));
    let locks = connect_with(builder, &server.url()).await;
    server.kill9();
    locks.lock(NAME).acquire().await.unwrap_err();
    let waiting = [NAME, "other"].map(|name| {
        let request = locks.lock(name).wait(SOON * 3);
        tokio::spawn(request.acquire())
    });
    eventually_async(SOON, async || locks.health().waiting == 2).await;
    let started = Stopwatch::start();
    let ended = locks.shutdown().await;
    for waiting in waiting {
        let error = waiting.await.unwrap().unwrap_err();
        assert!(matches!(error, LockError::ShuttingDown), "{error}");
    }
    let took = started.elapsed();
    assert!(took < ms(400) + SLACK + started.stalled(), "{ended:?}");
}

#[tokio::test]
async fn shutdown_counts_guards_that_still_exist() {
    let server = RedisServer::start();
    let builder = LockManager::builder().shutdown_timeout(ms(100));
    let locks = connect_with(builder, &server.url()).await;
    let ttl = ms(600);
    let held = locks.lock(NAME).ttl(ttl).acquire().await.unwrap();
    let incomplete = locks.shutdown().await.unwrap_err();
    assert_eq!((incomplete.open, incomplete.held), (0, 1));
    let text = incomplete.to_string();
    assert!(text.contains("1 of them because their guards"), "{text}");
    // The lock is still renewed.
    tokio::time::sleep(ttl * 2).await;
    held.release().await.unwrap();
    locks.shutdown().await.unwrap();
}

/// A call that begins while the server is down counts once, also after the reconnect.
#[tokio::test]
async fn call_that_waited_for_a_connection_counts_once() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let builder = LockManager::builder().command_timeout(ms(500));
    let locks = connect_with(builder, &proxy.url()).await;
    let other = connect(&server).await;
    let held = other.lock(NAME).acquire().await.unwrap();
    proxy.refuse();
    proxy.cut_all();
    locks.lock("other").acquire().await.unwrap_err();
    let waiting = tokio::spawn(locks.lock(NAME).wait(SOON).acquire());
    eventually_async(SOON, async || locks.health().waiting == 1).await;
    proxy.forward();
    eventually_async(SOON, async || queue_length(&server) == 1).await;
    assert_eq!(locks.health().waiting, 1);
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(locks.health().waiting, 0);
    shut_down(&locks).await;
}

#[tokio::test]
async fn ping_of_a_stopped_server_tells_the_reason() {
    let server = RedisServer::start();
    let timeout = ms(300);
    let builder = LockManager::builder().command_timeout(timeout);
    let locks = connect_with(builder, &server.url()).await;
    server.kill9();
    for _ in 0..2 {
        let started = Stopwatch::start();
        let error = locks.ping().await.unwrap_err();
        let took = started.elapsed();
        assert!(took < timeout + SLACK + started.stalled(), "{took:?}");
        assert!(error.to_string().contains("connection refused"), "{error}");
        tokio::time::sleep(REUSED).await;
    }
}

/// The server grants locks, and its notifications do not arrive yet.
#[tokio::test]
async fn first_ping_does_not_need_the_subscription() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let builder = LockManager::builder().command_timeout(ms(700));
    let locks = connect_with(builder, &proxy.url()).await;
    // A lock takes two round trips, and a subscription three more.
    proxy.delay_round_trip(ms(160));
    assert!(!locks.ping().await.unwrap().notifies_waiters);
    proxy.forward();
    shut_down(&locks).await;
}
