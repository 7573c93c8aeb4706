//! Fencing tokens, whose counters expire after five minutes, and times at the limits of their
//! types.

use std::time::Duration;

use lock_core::{LockGuard, LockManager, Renew};
use test_support::fixtures::{COUNTER, KEY, LONG, NAME, SOON, keys, ms};
use test_support::{FrozenClock, RedisServer, eventually};
use tests::start_waiter;
use tokio::task::JoinSet;

use super::connect;

const START: u64 = 1_800_000_000_000_000;
const LIFE: Duration = Duration::from_secs(300);

fn token(guard: &LockGuard) -> u64 {
    guard.fencing_token().unwrap().as_u64()
}

async fn next(locks: &LockManager) -> u64 {
    let guard = locks.lock(NAME).acquire().await.unwrap();
    let token = token(&guard);
    guard.release().await.unwrap();
    token
}

/// Tokens grow at any step of the clock, and however often the counter expires.
#[tokio::test]
async fn tokens_grow_after_counter_expiry_and_clock_steps() {
    let clock = FrozenClock::at(START);
    let server = RedisServer::options().clock(&clock).start();
    let mut last = 0;
    let mut expired = 0;
    for (step, direction) in [
        (LIFE + ms(1), 1_i32),
        (LIFE / 2, 1),
        (LIFE * 3, -1),
        (LIFE * 2, 1),
        (LIFE * 5, 1),
        (LIFE * 4, -1),
        (ms(1), -1),
        (LIFE * 4 + ms(2), 1),
        (LIFE, 1),
    ] {
        // A new manager reads the clock as it is. An old manager has a floor from before the step.
        let locks = connect(&server).await;
        for _ in 0..3 {
            let token = next(&locks).await;
            assert!(token > last, "{token} after {last}");
            last = token;
        }
        if direction > 0 {
            clock.advance(step);
        } else {
            clock.rewind(step);
        }
        expired += i32::from(server.cli(&["EXISTS", COUNTER]).integer() == 0);
        let token = next(&locks).await;
        assert!(token > last, "{token} after {last}, on an old connection");
        last = token;
    }
    assert!(expired >= 2, "{expired} times");
}

/// A connection from before the clock was set back has a floor ahead of the clock. A counter that
/// begins at this floor is ahead of the clock too.
#[tokio::test]
async fn tokens_grow_after_expiry_of_a_counter_ahead_of_the_clock() {
    let clock = FrozenClock::at(START);
    let server = RedisServer::options().clock(&clock).start();
    let old = connect(&server).await;
    clock.rewind(LIFE * 3);
    let mut last = next(&old).await;
    for _ in 0..14 {
        clock.advance(LIFE / 4);
        for locks in [&connect(&server).await, &old] {
            let token = next(locks).await;
            assert!(token > last, "{token} after {last}");
            last = token;
        }
    }
    clock.advance(LIFE * 2);
    assert_eq!(
        server.cli(&["EXISTS", COUNTER]).integer(),
        0,
        "the counter expires"
    );
}

/// Increments do not extend the counter's lifetime: it ends five minutes after its seed.
#[tokio::test]
async fn counter_expires_five_minutes_after_its_seed() {
    let clock = FrozenClock::at(START);
    let server = RedisServer::options().clock(&clock).start();
    let locks = connect(&server).await;
    for _ in 0..5 {
        next(&locks).await;
        clock.advance(Duration::from_secs(50));
    }
    let left = server.cli(&["PTTL", COUNTER]).integer();
    assert_eq!(left, 50_000, "the counter was seeded 250 s ago");
    next(&locks).await;
    assert_eq!(server.cli(&["PTTL", COUNTER]).integer(), 50_000);
    clock.advance(Duration::from_secs(51));
    assert_eq!(server.cli(&["EXISTS", COUNTER]).integer(), 0);
}

/// A counter lives for its lead and five minutes more. Otherwise a client without the lead, as in a rolling deployment,
/// would begin a lower one.
#[tokio::test]
async fn tokens_grow_while_clients_have_different_leads() {
    let clock = FrozenClock::at(START);
    let server = RedisServer::options().clock(&clock).start();
    let builder = LockManager::builder().fencing_lead(LIFE * 2);
    let ahead = builder.connect(&server.url()).await.unwrap();
    let behind = connect(&server).await;
    let mut last = next(&ahead).await;
    for _ in 0..5 {
        clock.advance(LIFE / 2);
        let token = next(&behind).await;
        assert!(token > last, "{token} after {last}");
        last = token;
    }
}

/// A promoted replica has the keys of the primary, and a clock that is behind.
#[tokio::test]
async fn tokens_grow_on_a_promoted_replica_with_a_slow_clock() {
    let (clock, behind) = (FrozenClock::at(START), FrozenClock::at(START));
    behind.rewind(Duration::from_secs(20));
    // The primary waits for more replicas by its own clock, which stands still.
    let server = RedisServer::options().clock(&clock).start();
    let successor = RedisServer::options().clock(&behind).start();
    let port = server.port().to_string();
    successor.cli(&["REPLICAOF", "127.0.0.1", &port]);
    let in_sync = || {
        let role = successor.cli(&["ROLE"]);
        role.array()
            .get(3)
            .is_some_and(|state| state.text() == "connected")
    };
    eventually(SOON, in_sync);
    let locks = connect(&server).await;
    let mut last = 0;
    for life in 0..4_u32 {
        for _ in 0..5 {
            last = next(&locks).await;
        }
        let counter = server.cli(&["GET", COUNTER]);
        eventually(SOON, || successor.cli(&["GET", COUNTER]) == counter);
        if life < 3 {
            clock.advance(LIFE + ms(1));
            behind.advance(LIFE + ms(1));
        }
    }
    // Once with the counter, and once after the counter expired on the replica too.
    successor.cli(&["REPLICAOF", "NO", "ONE"]);
    let locks = connect(&successor).await;
    for _ in 0..2 {
        let token = next(&locks).await;
        assert!(token > last, "{token} after {last}");
        last = token;
        behind.advance(LIFE + ms(1));
    }
}

/// Each name is used once. With a lifetime of a day, keys of 176 bytes took 15 GB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_used_once_leave_no_key_after_five_minutes() {
    const NAMES: usize = 100_000;
    const TASKS: usize = 100;
    let clock = FrozenClock::at(START);
    let server = RedisServer::options().clock(&clock).start();
    let locks = connect(&server).await;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let locks = locks.clone();
        tasks.spawn(async move {
            for number in (task..NAMES).step_by(TASKS) {
                let guard = locks
                    .lock(format!("once:{number}"))
                    .acquire()
                    .await
                    .unwrap();
                guard.release().await.unwrap();
            }
        });
    }
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    assert_eq!(keys(&server), Vec::<String>::new());
    assert_eq!(
        server.cli(&["DBSIZE"]).integer(),
        i64::try_from(NAMES).unwrap()
    );
    clock.advance(LIFE + ms(1));
    // The server removes expired keys in the background.
    eventually(SOON, || server.cli(&["DBSIZE"]).integer() == 0);
}

/// `since` is the time of the grant, for an acquired lock and for a lock that was handed over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn value_names_the_grant_time_and_the_holder() {
    let server = RedisServer::start();
    let label = format!("{}\n\u{1b}[31m", "web-1 é".repeat(30));
    let builder = LockManager::builder().label(&label);
    let locks = super::connect_with(builder, &server.url()).await;
    let time = || -> u64 {
        let time = server.cli(&["TIME"]);
        let part = |at: usize| -> u64 { time.array()[at].text().parse().unwrap() };
        part(0) * 1_000 + part(1) / 1_000
    };
    let check = |guard: &LockGuard, from: u64| {
        let value = server.cli(&["GET", KEY]).text().to_owned();
        let words: Vec<_> = value.splitn(4, ' ').collect();
        assert!(words[0].starts_with("lk1:"), "{value}");
        assert_eq!(words[0].len(), 40);
        assert_eq!(words[1], token(guard).to_string());
        let since: u64 = words[2].parse().unwrap();
        assert!((from..=time()).contains(&since), "{value}");
        assert!(words[3].starts_with("web-1 é") && words[3].len() <= 96 && words[3].len() > 90);
        assert!(!value.contains(char::is_control));
    };
    let from = time();
    let held = locks.lock(NAME).acquire().await.unwrap();
    check(&held, from);
    held.renew().await.unwrap();
    check(&held, from);
    let waiting = start_waiter(&server, locks.lock(NAME).ttl(LONG).wait(SOON), 1).await;
    let from = time();
    held.release().await.unwrap();
    let held = waiting.await.unwrap().unwrap();
    check(&held, from);
    held.release().await.unwrap();
}

/// The sum of a time and a duration may overflow. An overflow must not end the lock at once.
#[tokio::test]
async fn longest_durations_still_exclude() {
    let longest = Duration::MAX;
    let locks = LockManager::builder()
        .retry_interval(longest)
        .in_memory()
        .unwrap();
    for request in [
        locks.lock(NAME).max_hold(longest),
        locks.lock(NAME).max_hold(longest / 2).wait(longest),
        locks
            .lock(NAME)
            .ttl(ms(100))
            .renew(Renew::Every(ms(50)))
            .max_hold(longest),
    ] {
        let held = request.clone().acquire().await.unwrap();
        assert!(
            locks.lock(NAME).try_acquire().await.unwrap().is_none(),
            "there are two holders"
        );
        assert!(!held.is_lost());
        held.renew().await.unwrap();
        let lost = tokio::time::timeout(ms(20), held.lost()).await;
        assert!(lost.is_err());
        held.release().await.unwrap();
        request.run(async |_| ()).await.unwrap();
    }
    let server = RedisServer::start();
    let builder = LockManager::builder()
        .retry_interval(longest)
        .shutdown_timeout(longest);
    let locks = super::connect_with(builder, &server.url()).await;
    let held = locks.lock(NAME).max_hold(longest).acquire().await.unwrap();
    held.renew().await.unwrap();
    assert!(locks.lock(NAME).try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
    server.cli(&["SET", KEY, "foreign", "PX", "60000"]);
    let error = locks.lock(NAME).wait(ms(300)).acquire().await.unwrap_err();
    assert!(error.is_contended(), "{error}");
    locks.shutdown().await.unwrap();
}
