//! The dialect whose value is a deadline.

use std::time::{Duration, Instant, SystemTime};

use lock_core::dialect::Dialect;
use lock_core::error::BackendErrorKind;
use lock_core::{LockError, LockManager};
use test_support::fixtures::{KEY, NAME, SLACK, SOON, exists, ms};
use test_support::{FrozenClock, Lost, Proxy, RedisServer, eventually};
use tests::{acquire_and_release, connect, shut_down};
use tokio::task::JoinSet;

use super::{connect_in, refusal, value};

const TTL: Duration = Duration::from_secs(1);

/// The tolerated difference between the clocks of clients.
const TOLERANCE: Duration = ms(100);

async fn deadlines(url: &str) -> LockManager {
    connect_in(Dialect::DeadlineGetset, url).await
}

/// Returns the value that other libraries write: a deadline this many milliseconds from now.
fn deadline_in(millis: i128) -> String {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
    (i128::try_from(now).unwrap() + millis).to_string()
}

/// Returns how far in the future the deadline in the key is, in milliseconds.
fn ahead(server: &RedisServer) -> i128 {
    value(server).parse::<i128>().unwrap() - deadline_in(0).parse::<i128>().unwrap()
}

#[tokio::test]
async fn acquired_value_is_the_deadline_plus_one_millisecond() {
    let server = RedisServer::start();
    let locks = deadlines(&server.url()).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    assert!(
        (29_500..=30_050).contains(&ahead(&server)),
        "{}",
        ahead(&server)
    );
    let pttl = server.cli(&["PTTL", KEY]).integer();
    assert!((29_600..=30_150).contains(&pttl), "{pttl}");
    // The holder counts its lease as expired earlier than clients whose clocks are ahead.
    let native = ms(30_000 - 300 - 2);
    assert!(
        held.remaining() <= native - TOLERANCE,
        "{:?}",
        held.remaining()
    );
    let before = value(&server);
    tokio::time::sleep(ms(5)).await;
    held.renew().await.unwrap();
    assert!(value(&server) > before, "the lock was renewed by GETSET");
    held.release().await.unwrap();
    assert!(!exists(&server, KEY));
}

/// GETSET takes over a passed deadline. The client waits for a deadline that has not passed, even
/// if the clock of its writer is behind.
#[tokio::test]
async fn acquire_takes_over_a_passed_deadline() {
    let server = RedisServer::start();
    let locks = deadlines(&server.url()).await;
    server.cli(&["SET", KEY, &deadline_in(-150)]);
    let monitor = server.monitor();
    let held = locks.lock(NAME).acquire().await.unwrap();
    let recording = monitor.stop();
    let mut names = recording
        .all()
        .iter()
        .map(test_support::monitor::Command::name);
    assert!(names.any(|name| name == "GETSET"), "{recording:?}");
    assert!(ahead(&server) > 29_000);
    held.release().await.unwrap();

    server.cli(&["SET", KEY, &deadline_in(400)]);
    let started = Instant::now();
    let error = refusal(&locks).await;
    assert!(error.is_contended(), "{error}");
    let tolerated = ms(400) + TOLERANCE;
    assert!(error.holder().unwrap().remaining.unwrap() <= ms(401));
    let held = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
    let took = started.elapsed();
    assert!(
        took > tolerated - ms(20) && took < tolerated + SLACK,
        "{took:?}"
    );
    held.release().await.unwrap();
}

/// A deadline must not be released twice. If the locks of a set are released one after the other, a broken connection
/// leaves only one release unconfirmed.
#[tokio::test]
async fn locks_of_a_set_are_released_one_after_the_other() {
    let server = RedisServer::start();
    let locks = deadlines(&server.url()).await;
    let held = locks.lock_all(["a", "b", "c"]).acquire().await.unwrap();
    let monitor = server.monitor();
    held.release().await.unwrap();
    let recording = monitor.stop();
    let names: Vec<_> = recording
        .from_clients()
        .map(test_support::monitor::Command::name)
        .collect();
    let release = |name: &str| name == "EVALSHA" || name == "EVAL";
    assert!(
        names.iter().filter(|name| release(name)).count() >= 3,
        "{names:?}"
    );
    let together = names
        .windows(2)
        .any(|two| two.iter().all(|name| release(name)));
    assert!(!together, "{names:?}");
    for name in ["a", "b", "c"] {
        assert!(!exists(&server, &format!("lock:{name}")));
    }
}

/// A losing contender of another library has moved the deadline. The winner keeps the lock until
/// its own deadline. It can neither renew nor release, and reports that. The lock ends at the
/// loser's deadline.
#[tokio::test]
async fn getset_of_another_client_makes_the_holder_lose_its_lock() {
    let server = RedisServer::start();
    let locks = deadlines(&server.url()).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    server.cli(&["GETSET", KEY, &deadline_in(700)]);
    assert!(
        !held.is_lost(),
        "no client takes it over before its deadline"
    );
    let error = held.renew().await.unwrap_err();
    assert!(matches!(error, LockError::Lost { .. }), "{error}");
    let error = held.release().await.unwrap_err();
    assert!(matches!(error, LockError::Lost { .. }), "{error}");
    assert!(refusal(&locks).await.is_contended());
    let wait = ms(700) + TOLERANCE + SLACK;
    let held = locks.lock(NAME).wait(wait).acquire().await;
    held.unwrap().release().await.unwrap();
}

/// This library reads and replaces the value in one script, so its losing contenders do not change
/// the winner's deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_acquire_does_not_change_the_deadline() {
    let server = RedisServer::start();
    let mut managers = Vec::new();
    for _ in 0..8 {
        managers.push(deadlines(&server.url()).await);
    }
    for _ in 0..20 {
        server.cli(&["SET", KEY, &deadline_in(-150)]);
        let mut contenders = JoinSet::new();
        for locks in &managers {
            contenders.spawn(locks.lock(NAME).try_acquire());
        }
        let outcomes = contenders.join_all().await.into_iter();
        let mut winners: Vec<_> = outcomes.filter_map(Result::unwrap).collect();
        let winner = winners.pop().expect("one contender acquired the lock");
        assert!(winners.is_empty(), "two contenders hold the lock");
        winner.renew().await.unwrap();
        winner.release().await.expect("the value is the winner's");
    }
}

/// The library compares the clocks at connect, and also for one lock in this dialect of another
/// manager.
#[tokio::test]
async fn connect_and_acquire_refuse_differing_clocks() {
    let now = || i64::try_from(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros()).unwrap();
    let clock = FrozenClock::at(now().unsigned_abs());
    let server = RedisServer::options().clock(&clock).start();
    for (differ, micros) in [
        (true, 600_000),
        (true, -600_000),
        (false, 0),
        (false, 40_000),
    ] {
        clock.run_ahead_by(micros);
        // Valkey 9 goes on with the time that it read last for a moment.
        eventually(SOON, || {
            let time = server.cli(&["TIME"]);
            let part = |at: usize| time.array()[at].text().parse::<i64>().unwrap();
            let ahead = part(0) * 1_000_000 + part(1) - now();
            (ahead - micros).abs() < 20_000
        });
        let builder = LockManager::builder().dialect(Dialect::DeadlineGetset);
        let connected = builder.connect(&server.url()).await;
        let native = connect(&server).await;
        let acquired = native
            .lock(NAME)
            .dialect(Dialect::DeadlineGetset)
            .acquire()
            .await;
        let builder = LockManager::builder().dialect(Dialect::DeadlineGetset);
        let lazy = builder.connect_lazy(server.url()).unwrap();
        let by_lazy = lazy.lock("lazy").acquire().await;
        for error in [connected.err(), acquired.err(), by_lazy.err()] {
            let Some(error) = error else {
                assert!(!differ, "{micros}");
                continue;
            };
            let LockError::Backend(error) = error else {
                panic!("{error}");
            };
            assert!(differ, "{micros}: {error}");
            assert_eq!(error.kind(), BackendErrorKind::ClocksDiffer);
            let text = error.to_string();
            assert!(
                text.contains("tolerates 100ms") && text.contains("NTP"),
                "{text}"
            );
        }
        shut_down(&native).await;
    }
}

/// The current value may belong to the next holder and be equal.
#[tokio::test]
async fn release_without_a_reply_is_not_retried() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = deadlines(&proxy.url()).await;
    // The script is already loaded, and a release is one command.
    acquire_and_release(&locks).await;
    let held = locks.lock(NAME).ttl(TTL).acquire().await.unwrap();
    let written = value(&server);
    proxy.lose_next(Lost::Reply, written.as_bytes());
    let error = held.release().await.unwrap_err();
    let LockError::Backend(error) = error else {
        panic!("{error}");
    };
    assert_eq!(error.kind(), BackendErrorKind::ReleaseUnconfirmed);
    assert!(!exists(&server, KEY), "the server executed the first copy");
    // Another client holds the lock by now, with an equal deadline.
    server.cli(&["SET", KEY, &written]);
    let drained = tokio::time::timeout(TTL / 2, locks.shutdown()).await;
    drained.expect("no cleanup is left").unwrap();
    assert_eq!(value(&server), written);
}

/// An acquisition whose reply was lost has no owner id, so its key stays for the ttl.
#[tokio::test]
async fn acquire_without_a_reply_ends_with_its_ttl() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = deadlines(&proxy.url()).await;
    // The script is already loaded, and a request is one command.
    acquire_and_release(&locks).await;
    let started = Instant::now();
    proxy.lose_next(Lost::Reply, KEY);
    let held = locks
        .lock(NAME)
        .ttl(TTL)
        .wait(SOON)
        .acquire()
        .await
        .unwrap();
    let took = started.elapsed();
    assert!(
        took >= TTL - ms(5) && took < TTL + TOLERANCE + SLACK,
        "{took:?}"
    );
    held.release().await.unwrap();
    assert!(!exists(&server, KEY));
}
