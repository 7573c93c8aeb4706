//! The dialect whose value is a deadline.

use std::time::{Duration, Instant, SystemTime};

use lock_core::{BackendErrorKind, Dialect, LockError, LockManager};
use test_support::fixtures::{KEY, NAME, SLACK, SOON, exists, ms};
use test_support::{FrozenClock, Lost, Proxy, RedisServer};
use tests::{acquire_and_release, connect, shut_down};
use tokio::task::JoinSet;

use super::{connect_in, refusal, value};

const TTL: Duration = Duration::from_secs(1);

/// What the clocks of others may differ by.
const TOLERANCE: Duration = ms(100);

async fn deadlines(url: &str) -> LockManager {
    connect_in(Dialect::DeadlineGetset, url).await
}

/// So many milliseconds from now, as others write it.
fn deadline_in(millis: i128) -> String {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis();
    (i128::try_from(now).unwrap() + millis).to_string()
}

/// How far ahead the deadline in the key is.
fn ahead(server: &RedisServer) -> i128 {
    value(server).parse::<i128>().unwrap() - deadline_in(0).parse::<i128>().unwrap()
}

#[tokio::test]
async fn the_value_is_now_and_the_ttl_and_a_millisecond() {
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
    // A lease ends earlier for its holder than for those whose clocks are ahead.
    let native = ms(30_000 - 300 - 2);
    assert!(
        held.remaining() <= native - TOLERANCE,
        "{:?}",
        held.remaining()
    );
    let before = value(&server);
    tokio::time::sleep(ms(5)).await;
    held.renew().await.unwrap();
    assert!(value(&server) > before, "renewed by GETSET");
    held.release().await.unwrap();
    assert!(!exists(&server, KEY));
}

/// A deadline that has passed is taken over by GETSET, one that has not, by a clock that is
/// behind, is waited for.
#[tokio::test]
async fn a_deadline_that_has_passed_is_taken_over() {
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
    let asked = Instant::now();
    let error = refusal(&locks).await;
    assert!(error.is_contended(), "{error}");
    let tolerated = ms(400) + TOLERANCE;
    assert!(error.holder().unwrap().remaining().unwrap() <= ms(401));
    let held = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
    let took = asked.elapsed();
    assert!(
        took > tolerated - ms(20) && took < tolerated + SLACK,
        "{took:?}"
    );
    held.release().await.unwrap();
}

/// A loser of another client has moved the deadline: the winner's time is its own until then, but
/// it can neither renew nor release, and says so. The lock goes with the loser's deadline.
#[tokio::test]
async fn a_loser_s_getset_costs_the_winner_its_renewal() {
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

/// Our own losers read and replace in one script: the winner's deadline stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn losers_of_ours_leave_the_winner_s_deadline_alone() {
    let server = RedisServer::start();
    let mut managers = Vec::new();
    for _ in 0..8 {
        managers.push(deadlines(&server.url()).await);
    }
    for _ in 0..20 {
        server.cli(&["SET", KEY, &deadline_in(-150)]);
        let mut asking = JoinSet::new();
        for locks in &managers {
            asking.spawn(locks.lock(NAME).try_acquire());
        }
        let got = asking.join_all().await.into_iter();
        let mut winners: Vec<_> = got.filter_map(Result::unwrap).collect();
        let winner = winners.pop().expect("one of them got it");
        assert!(winners.is_empty(), "two hold it");
        winner.renew().await.unwrap();
        winner.release().await.expect("the value is its own");
    }
}

/// The clocks are compared at connect, and for a lock in this dialect of another manager.
#[tokio::test]
async fn clocks_that_differ_are_refused() {
    let now = u64::try_from(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros()).unwrap();
    let clock = FrozenClock::at(now);
    let server = RedisServer::options().clock(&clock).start();
    for (differ, micros) in [
        (true, 600_000),
        (true, -600_000),
        (false, 0),
        (false, 40_000),
    ] {
        clock.run_ahead_by(micros);
        let builder = LockManager::builder().dialect(Dialect::DeadlineGetset);
        let connected = builder.connect(&server.url()).await;
        let native = connect(&server).await;
        let asked = native
            .lock(NAME)
            .dialect(Dialect::DeadlineGetset)
            .acquire()
            .await;
        for error in [connected.err(), asked.err()] {
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
                text.contains("bears 100ms") && text.contains("NTP"),
                "{text}"
            );
        }
        shut_down(&native).await;
    }
}

/// The value that stands there may be the next holder's, and read the same.
#[tokio::test]
async fn a_release_without_an_answer_is_not_sent_again() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = deadlines(&proxy.url()).await;
    // The script is known, and a release is one command.
    acquire_and_release(&locks).await;
    let held = locks.lock(NAME).ttl(TTL).acquire().await.unwrap();
    let written = value(&server);
    proxy.lose_next(Lost::Reply, written.as_bytes());
    let error = held.release().await.unwrap_err();
    let LockError::Backend(error) = error else {
        panic!("{error}");
    };
    assert_eq!(error.kind(), BackendErrorKind::ReleaseUnconfirmed);
    assert!(!exists(&server, KEY), "the first copy was carried out");
    // Another client has it by now, until the very same moment.
    server.cli(&["SET", KEY, &written]);
    let drained = tokio::time::timeout(TTL / 2, locks.shutdown()).await;
    drained.expect("nothing is left to be done").unwrap();
    assert_eq!(value(&server), written);
}

/// An acquisition whose reply got lost has no owner, and costs the ttl.
#[tokio::test]
async fn an_acquisition_without_an_answer_ends_by_itself() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = deadlines(&proxy.url()).await;
    // The script is known, and a request is one command.
    acquire_and_release(&locks).await;
    let asked = Instant::now();
    proxy.lose_next(Lost::Reply, KEY);
    let held = locks
        .lock(NAME)
        .ttl(TTL)
        .wait(SOON)
        .acquire()
        .await
        .unwrap();
    let took = asked.elapsed();
    assert!(
        took >= TTL - ms(5) && took < TTL + TOLERANCE + SLACK,
        "{took:?}"
    );
    held.release().await.unwrap();
    assert!(!exists(&server, KEY));
}
