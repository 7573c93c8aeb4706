//! The background worker under bursts and outages.

use std::time::{Duration, Instant};

use lock_core::error::ShutdownIncomplete;
use lock_core::{LockGuard, LockManager, Renew};
use test_support::fixtures::{LONG, NAME, SLACK, SOON, keys, ms};
use test_support::{Direction, FrozenClock, Proxy, RedisServer, Stopwatch, eventually_async};
use tests::shut_down;
use tokio::task::JoinSet;

use super::connect_with;

/// Acquires this many uncontended locks.
async fn acquire_many(locks: &LockManager, count: usize) -> Vec<LockGuard> {
    const TASKS: usize = 64;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let locks = locks.clone();
        tasks.spawn(async move {
            let mut guards = Vec::new();
            for number in (task..count).step_by(TASKS) {
                let request = locks.lock(format!("burst:{number}")).ttl(LONG);
                guards.push(request.acquire().await.unwrap());
            }
            guards
        });
    }
    let mut guards = Vec::new();
    while let Some(some) = tasks.join_next().await {
        guards.extend(some.unwrap());
    }
    guards
}

/// Renewals run before releases, however many releases there are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn burst_of_dropped_guards_does_not_delay_renewals() {
    const BURST: usize = 50_000;
    let server = RedisServer::start();
    let patient = LockManager::builder().command_timeout(SOON);
    let locks = connect_with(patient, &server.url()).await;
    let burst = acquire_many(&locks, BURST).await;
    let mut held = Vec::new();
    for (number, ttl) in [3_000, 3_000, 6_000, 6_000].into_iter().enumerate() {
        let request = locks.lock(format!("held:{number}")).ttl(ms(ttl));
        held.push(request.acquire().await.unwrap());
    }
    let dropped = tokio::task::spawn_blocking(move || drop(burst));
    let started = Instant::now();
    loop {
        for guard in &held {
            assert!(
                !guard.is_lost(),
                "{} after {:?}",
                guard.key(),
                started.elapsed()
            );
        }
        let left = server.cli(&["EXISTS", "lock:burst:0"]).integer();
        let size = server.cli(&["DBSIZE"]).integer();
        // The counter of each lock, and the keys of the locks that are still held.
        let done = i64::try_from(BURST + 2 * held.len()).unwrap();
        if left == 0 && size <= done && started.elapsed() > ms(9_000) {
            break;
        }
        assert!(started.elapsed() < SOON * 6, "{size} keys are left");
        tokio::time::sleep(ms(5)).await;
    }
    dropped.await.unwrap();
    for guard in held {
        guard.release().await.unwrap();
    }
    shut_down(&locks).await;
    assert_eq!(keys(&server), Vec::<String>::new());
}

/// The worker sends many cancels in few commands, and no cancel overtakes its acquire.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn burst_of_dropped_acquires_leaves_no_lock() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_with(LockManager::builder(), &proxy.url()).await;
    proxy.delay_round_trip(ms(20));
    for round in 0..3 {
        let mut calls = JoinSet::new();
        for number in 0..1_000 {
            let locks = locks.clone();
            calls.spawn(async move {
                let request = locks.lock(format!("call:{number}")).ttl(LONG).wait(SOON);
                let _ = tokio::time::timeout(ms(10 + 5 * round), request.acquire()).await;
            });
        }
        while let Some(call) = calls.join_next().await {
            call.unwrap();
        }
    }
    proxy.forward();
    shut_down(&locks).await;
    assert_eq!(keys(&server), Vec::<String>::new());
}

/// The server is down during the shutdown, and the locks' ttl is long.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_times_out_and_counts_unreleased_locks() {
    let timeout = ms(300);
    let server = RedisServer::start();
    let builder = LockManager::builder().shutdown_timeout(timeout);
    let locks = connect_with(builder, &server.url()).await;
    let mut guards = Vec::new();
    for number in 0..3 {
        let request = locks.lock(format!("{NAME}:{number}"));
        guards.push(request.ttl(LONG * 60).acquire().await.unwrap());
    }
    server.kill9();
    drop(guards);
    let started = Stopwatch::start();
    let incomplete = locks.shutdown().await.unwrap_err();
    let took = started.elapsed();
    assert!(
        took >= timeout && took < timeout + SLACK + started.stalled(),
        "{took:?}"
    );
    let ShutdownIncomplete { open, held, .. } = incomplete;
    assert_eq!((open, held), (3, 0));
    assert!(
        incomplete.to_string().contains("3 locks were not released"),
        "{incomplete}"
    );
    // The releases continue in the background.
    server.restart();
    shut_down(&locks).await;
}

/// The user loses the right to run scripts: the worker gives up the releases, and the keys stay
/// until their ttl.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_counts_refused_releases() {
    const GUARDS: usize = 7;
    let server = RedisServer::start();
    server.cli(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all"]);
    let url = format!("redis://app:pw@{}", server.address());
    let locks = connect_with(LockManager::builder(), &url).await;
    let guards = acquire_many(&locks, GUARDS).await;
    let short = locks.lock("short").ttl(ms(300)).renew(Renew::Never);
    let short = short.acquire().await.unwrap();
    server.cli(&["ACL", "SETUSER", "app", "-eval", "-evalsha"]);
    drop((guards, short));
    let left = locks.shutdown().await.unwrap_err();
    assert!((GUARDS..=GUARDS + 1).contains(&left.open), "{left}");
    // A lock whose lease is over no longer counts.
    eventually_async(SOON, async || {
        locks.shutdown().await.unwrap_err().open == GUARDS
    })
    .await;
}

/// The server confirms a cancel when its clock has passed the `not_after` of the acquire. A clock that
/// was set back by an hour does not pass it in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_ends_after_the_server_clock_was_set_back() {
    let timeout = ms(200);
    let clock = FrozenClock::at(1_800_000_000_000_000);
    clock.run_ahead_by(0);
    let server = RedisServer::options().clock(&clock).start();
    let proxy = Proxy::in_front_of(&server);
    let builder = LockManager::builder().command_timeout(timeout);
    let locks = connect_with(builder, &proxy.url()).await;
    let request = locks.lock(NAME).ttl(ms(300));
    request
        .clone()
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    // The future is dropped between the command and its reply.
    proxy.delay(Direction::ToClient, ms(150));
    let dropped = tokio::time::timeout(ms(50), request.acquire()).await;
    assert!(dropped.is_err(), "the acquire got its reply");
    clock.run_ahead_by(-3_600_000_000);
    proxy.delay(Direction::ToClient, Duration::ZERO);
    let started = Instant::now();
    shut_down(&locks).await;
    // Two command timeouts and the ttl: every command that was sent is over by then.
    assert!(
        started.elapsed() < timeout * 2 + ms(300) + SLACK * 2,
        "{:?}",
        started.elapsed()
    );
}
