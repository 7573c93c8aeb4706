//! Regression tests for faults that an adversarial review of the dialects found.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use lock_core::config::Handover;
use lock_core::dialect::Dialect;
use lock_core::error::BackendErrorKind;
use lock_core::{LockError, LockGuard, LockManager, Renew};
use test_support::fixtures::{KEY, NAME, SLACK, SOON, exists, ms};
use test_support::stand_in::Quirk;
use test_support::{Direction, Lost, Neighbour, Proxy, RedisServer, StandIn, eventually_async};
use tests::{SET_NX_PX, SET_NX_PX_CONDITIONAL, WATCH_MULTI, shut_down, supported_dialects};

use super::{connect_in, refusal, value};

const TTL: Duration = Duration::from_secs(1);

fn deadline_in(millis: i128) -> String {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
    (i128::try_from(now).unwrap() + millis).to_string()
}

fn kind(error: &LockError) -> Option<BackendErrorKind> {
    match error {
        LockError::Backend(error) => Some(error.kind()),
        _ => None,
    }
}

/// Owners may be binary and long.
#[tokio::test]
async fn binary_or_long_owner_without_expiry_is_repaired() {
    let long = "x".repeat(1_000_000).into_bytes();
    for owner in [&b"\xac\xed\x00\x05t\x00\x02me"[..], &long[..], b""] {
        let server = RedisServer::start();
        let locks = connect_in(Dialect::SetnxExpire, &server.url()).await;
        server.cli(&[b"SETNX", KEY.as_bytes(), owner]);
        let acquired = locks.lock(NAME).ttl(ms(300)).wait(SOON / 4).acquire().await;
        acquired.unwrap().release().await.unwrap();
    }
}

fn user(server: &RedisServer, rights: &[&str]) -> String {
    let words = [
        &["ACL", "SETUSER", "app", "on", ">pass", "~*", "&*", "+@all"][..],
        rights,
    ];
    server.cli(&words.concat());
    user_at(server.address())
}

fn user_at(address: SocketAddr) -> String {
    format!("redis://app:pass@{address}")
}

/// A missing right is neither a lost lock nor a foreign key.
#[tokio::test]
async fn missing_right_is_reported_as_such() {
    for dialect in [SET_NX_PX, Dialect::LuaSetnxExpire, Dialect::DeadlineGetset] {
        let server = RedisServer::start();
        let url = user(&server, &[]);
        let locks = connect_in(dialect, &url).await;
        let held = locks.lock(NAME).ttl(TTL).acquire().await.unwrap();
        user(&server, &["-get"]);
        let error = held.renew().await.unwrap_err();
        assert_eq!(
            kind(&error),
            Some(BackendErrorKind::Permission),
            "{dialect}: {error}"
        );
        let error = held.release().await.unwrap_err();
        assert_eq!(
            kind(&error),
            Some(BackendErrorKind::Permission),
            "{dialect}: {error}"
        );
        if dialect != SET_NX_PX {
            let error = refusal(&locks).await;
            assert_eq!(
                kind(&error),
                Some(BackendErrorKind::Permission),
                "{dialect}: {error}"
            );
        }
    }
}

/// Without the right to set the expiry by script there is no lock and no key without an expiry.
#[tokio::test]
async fn acquire_without_script_rights_leaves_no_key() {
    let server = RedisServer::start();
    let current = user(&server, &["-@scripting"]);
    let old = StandIn::start(&server, [Quirk::NoExpireOptions]);
    for url in [current, user_at(old.address())] {
        let locks = connect_in(Dialect::SetnxExpire, &url).await;
        let error = locks.lock(NAME).ttl(ms(300)).acquire().await.unwrap_err();
        assert_eq!(kind(&error), Some(BackendErrorKind::Permission), "{error}");
        shut_down(&locks).await;
        let left = server.cli(&["PTTL", KEY]).integer();
        assert!(left != -1 && left <= 300, "{url}: PTTL {left}");
        eventually_async(SOON, async || !exists(&server, KEY)).await;
    }
}

/// Neither the expiry nor the cancel reaches the server for longer than the ttl.
#[tokio::test]
async fn acquire_before_a_long_outage_leaves_no_key() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let builder = LockManager::builder().dialect(Dialect::SetnxExpire);
    let locks = builder
        .command_timeout(ms(200))
        .connect(&proxy.url())
        .await
        .unwrap();
    // The reply to SETNX arrives after 60 ms, and the expiry is in flight until 120 ms.
    proxy.delay(Direction::ToServer, ms(60));
    let waiter = tokio::spawn(locks.lock(NAME).ttl(ms(300)).acquire());
    eventually_async(SOON, async || exists(&server, KEY)).await;
    tokio::time::sleep(ms(20)).await;
    proxy.cut_all();
    proxy.refuse();
    waiter.await.unwrap().unwrap_err();
    tokio::time::sleep(ms(1_500)).await;
    proxy.forward();
    // The worker keeps repeating the cancel after the lease has ended, with pauses that a shutdown doesn't wait for.
    eventually_async(SOON, async || !exists(&server, KEY)).await;
    shut_down(&locks).await;
}

/// Renewals of one lock on three connections, which arrive in any order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reordered_renewals_do_not_lose_the_lock() {
    const RENEWALS: usize = 100;
    async fn renew(held: &LockGuard) {
        for _ in 0..RENEWALS {
            held.renew().await.unwrap();
        }
    }
    let server = RedisServer::start();
    let locks = connect_in(Dialect::DeadlineGetset, &server.url()).await;
    for _ in 0..10 {
        let request = locks.lock(NAME).ttl(TTL).renew(Renew::Every(ms(10)));
        let held = request.acquire().await.unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let runtime = tokio::runtime::Builder::new_current_thread()
                        .enable_all()
                        .build()
                        .unwrap();
                    runtime.block_on(renew(&held));
                });
            }
        });
        held.release().await.unwrap();
        assert!(!exists(&server, KEY));
    }
}

/// A server that refused a release has not executed it.
#[tokio::test]
async fn refused_release_is_retried() {
    let server = RedisServer::start();
    let locks = connect_in(Dialect::DeadlineGetset, &server.url()).await;
    let held = locks.lock(NAME).ttl(TTL * 20).acquire().await.unwrap();
    // The name that all versions know.
    server.cli(&["CONFIG", "SET", "lua-time-limit", "1"]);
    let mut other = server.connect().unwrap();
    other.send(&["EVAL", "while true do end", "0"]).unwrap();
    tokio::time::sleep(ms(100)).await;
    let releasing = tokio::spawn(held.release());
    tokio::time::sleep(ms(200)).await;
    server.cli(&["SCRIPT", "KILL"]);
    let released = releasing.await.unwrap();
    shut_down(&locks).await;
    assert!(!exists(&server, KEY), "{released:?}");
    released.unwrap();
}

/// A release that cannot be confirmed does not delay the shutdown.
#[tokio::test]
async fn unconfirmed_release_does_not_delay_the_shutdown() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_in(Dialect::DeadlineGetset, &proxy.url()).await;
    let warm = locks.lock(NAME).acquire().await.unwrap();
    warm.release().await.unwrap();
    proxy.lose_next(Lost::Request, KEY);
    let held = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
    let written = value(&server);
    proxy.lose_next(Lost::Reply, written);
    let error = held.release().await.unwrap_err();
    assert_eq!(
        kind(&error),
        Some(BackendErrorKind::ReleaseUnconfirmed),
        "{error}"
    );
    let drained = tokio::time::timeout(SOON / 4, locks.shutdown()).await;
    drained.expect("no cleanup is possible").unwrap();
}

/// The owner is the time of the request, and the key has an expiry.
#[tokio::test]
async fn owner_that_is_a_time_is_never_taken_over() {
    let server = RedisServer::start();
    let locks = connect_in(Dialect::DeadlineGetset, &server.url()).await;
    server.cli(&["SET", KEY, &deadline_in(-150), "NX", "PX", "60000"]);
    let second = locks.lock(NAME).acquire().await;
    assert!(second.is_err(), "two clients hold the lock");
    let error = second.unwrap_err();
    assert!(matches!(error, LockError::ForeignKey { .. }), "{error}");
}

/// The holder's clock is 80 ms behind the server's, which is tolerated. It keeps the lock for
/// another 40 ms.
#[tokio::test]
async fn holder_with_a_tolerated_slow_clock_keeps_its_lock() {
    let server = RedisServer::start();
    let locks = connect_in(Dialect::DeadlineGetset, &server.url()).await;
    server.cli(&["SET", KEY, &deadline_in(-40)]);
    let error = refusal(&locks).await;
    assert!(error.is_contended(), "{error}");
}

/// A client touches one key all the time; the other locks are still renewed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn constantly_touched_key_does_not_delay_other_renewals() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    proxy.delay_round_trip(ms(6));
    let locks = connect_in(WATCH_MULTI, &proxy.url()).await;
    let ttl = ms(1_500);
    let mut others = Vec::new();
    let hot = locks.lock(NAME).ttl(ttl).acquire().await.unwrap();
    for number in 0..3 {
        let request = locks.lock(format!("other{number}")).ttl(ttl);
        others.push(request.acquire().await.unwrap());
    }
    let neighbour = Neighbour::of(&server, |connection| {
        connection.call(&["PEXPIRE", KEY, "60000"]).unwrap();
    });
    tokio::time::sleep(ms(4_000)).await;
    drop(neighbour);
    let lost = others.iter().filter(|held| held.is_lost()).count();
    drop(hot);
    assert_eq!(lost, 0, "of 3 locks whose keys no client touched");
}

/// The connection of the transactions hangs; native locks are still renewed.
#[tokio::test]
async fn hanging_transactions_do_not_delay_native_renewals() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_in(Dialect::Native, &proxy.url()).await;
    let ttl = ms(900);
    // The background worker's connections: the first lock opens one, the second lock opens the
    // other.
    let native = locks.lock("native").ttl(ttl).acquire().await.unwrap();
    tokio::time::sleep(ms(400)).await;
    let before = proxy.accepted();
    let watched = locks
        .lock(NAME)
        .ttl(ttl)
        .dialect(WATCH_MULTI)
        .acquire()
        .await
        .unwrap();
    eventually_async(SOON, async || proxy.accepted() > before).await;
    drop(native);
    let native = locks.lock("native2").ttl(ttl).acquire().await.unwrap();
    watched.renew().await.unwrap();
    native.renew().await.unwrap();
    proxy.mute(before, Direction::ToClient);
    tokio::time::sleep(ttl * 2).await;
    assert!(!native.is_lost(), "the server replied to its renewals");
}

/// The release overtakes a renewal. The renewal does not extend the remaining minimum hold.
#[tokio::test]
async fn late_renewal_does_not_extend_min_hold() {
    for dialect in [
        Dialect::Native,
        SET_NX_PX,
        Dialect::SetnxExpire,
        Dialect::LuaSetnxExpire,
        Dialect::DeadlineGetset,
        WATCH_MULTI,
    ] {
        let server = RedisServer::start();
        let proxy = Proxy::in_front_of(&server);
        let locks = connect_in(dialect, &proxy.url()).await;
        let ttl = TTL * 3;
        let request = locks
            .lock(NAME)
            .ttl(ttl)
            .renew(Renew::Every(ms(150)))
            .min_hold(ms(1_000));
        let held = request.acquire().await.unwrap();
        let before = proxy.accepted();
        // The background worker's connection, opened by its first renewal.
        eventually_async(SOON, async || proxy.accepted() > before).await;
        tokio::time::sleep(ms(100)).await;
        for number in before..proxy.accepted() {
            proxy.hold(number, Direction::ToServer);
        }
        tokio::time::sleep(ms(200)).await;
        held.release().await.unwrap();
        for number in before..proxy.accepted() {
            proxy.resume(number);
        }
        tokio::time::sleep(ms(50)).await;
        let left = server.cli(&["PTTL", KEY]).integer();
        assert!(left < 1_200, "{dialect}: {left}");
    }
}

/// A key of another type disappears while its type is requested.
#[tokio::test]
async fn key_that_disappears_during_the_type_check_is_free() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_in(SET_NX_PX, &proxy.url()).await;
    server.cli(&["RPUSH", KEY, "x"]);
    proxy.hold(0, Direction::ToClient);
    let waiter = tokio::spawn(locks.lock(NAME).wait(SOON).acquire());
    tokio::time::sleep(SLACK).await;
    server.cli(&["DEL", KEY]);
    proxy.resume(0);
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

/// The server closes idle connections; a release that was never executed is sent again.
#[tokio::test]
async fn release_over_a_closed_idle_connection_is_retried() {
    for dialect in supported_dialects() {
        let server = RedisServer::start();
        let proxy = Proxy::in_front_of(&server);
        let locks = connect_in(dialect, &proxy.url()).await;
        let held = locks.lock(NAME).acquire().await.unwrap();
        proxy.cut(0);
        tokio::time::sleep(ms(50)).await;
        let released = held.release().await;
        assert!(!exists(&server, KEY), "{dialect}: {released:?}");
        released.unwrap();
    }
}

/// A held lock is renewed, released and kept for its minimum hold, even by a server that refuses
/// new writes.
#[tokio::test]
async fn server_without_memory_renews_and_releases() {
    for dialect in supported_dialects() {
        let server = RedisServer::start();
        let locks = connect_in(dialect, &server.url()).await;
        let held = locks.lock(NAME).acquire().await.unwrap();
        let kept = locks
            .lock("kept")
            .min_hold(ms(600))
            .acquire()
            .await
            .unwrap();
        server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
        if dialect == WATCH_MULTI {
            // Redis 7 queues no command; the guide says so. Later servers do.
            if let Err(error) = held.renew().await {
                assert_eq!(kind(&error), Some(BackendErrorKind::OutOfMemory), "{error}");
            }
            server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
            held.renew().await.unwrap();
            continue;
        }
        if dialect == SET_NX_PX_CONDITIONAL {
            // The server only deletes; the guide says so.
            let error = held.renew().await.unwrap_err();
            assert_eq!(kind(&error), Some(BackendErrorKind::OutOfMemory), "{error}");
            held.release().await.unwrap();
            assert!(!exists(&server, KEY), "{dialect}");
            continue;
        }
        held.renew().await.unwrap();
        held.release().await.unwrap();
        assert!(!exists(&server, KEY), "{dialect}");
        kept.renew().await.unwrap();
        kept.release().await.unwrap();
        let left = server.cli(&["PTTL", "lock:kept"]).integer();
        // Scripts have no flags before Redis 7. A release that has to write is then repeated until it only deletes.
        let has_flags = !server.is_before((7, 0));
        assert!(
            (1..=750).contains(&left) || (left == -2 && !has_flags),
            "{dialect}: {left}"
        );
        let error = refusal(&locks).await;
        assert_eq!(
            kind(&error),
            Some(BackendErrorKind::OutOfMemory),
            "{dialect}: {error}"
        );
    }
}

/// The last step of the migration from deadlines to the native lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deadline_locks_and_native_locks_exclude_each_other() {
    let server = RedisServer::start();
    let inside = std::sync::Arc::new(AtomicBool::new(false));
    let mut tasks = tokio::task::JoinSet::new();
    for dialect in [Dialect::DeadlineGetset, Dialect::Native] {
        let builder = LockManager::builder()
            .dialect(dialect)
            .handover(Handover::YieldToOthers);
        let locks = builder.connect(&server.url()).await.unwrap();
        for task in 0..3 {
            let locks = locks.clone();
            let inside = std::sync::Arc::clone(&inside);
            tasks.spawn(async move {
                for round in 0..15 {
                    let request = locks.lock(NAME).ttl(TTL).wait(SOON);
                    let held = request.renew(Renew::Never).acquire().await.unwrap();
                    assert!(
                        !inside.swap(true, Ordering::SeqCst),
                        "two clients hold the lock"
                    );
                    tokio::time::sleep(ms(2)).await;
                    inside.store(false, Ordering::SeqCst);
                    if round == task * 4 {
                        // From the view of other clients the holder dies here.
                        std::mem::forget(held);
                    } else {
                        held.release().await.unwrap();
                    }
                }
            });
        }
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}
