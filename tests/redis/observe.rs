//! Observers: how many commands they send, and what they say of an outage.

use std::time::{Duration, Instant};

use lock_core::observe::Observer;
use lock_core::{LockError, LockManager, LockManagerBuilder};
use test_support::fixtures::{NAME, SOON, ms};
use test_support::{Monitor, RedisServer, completes_within};
use tests::shut_down;
use tokio::task::JoinSet;

use super::{connect, connect_with};

const INTERVAL: Duration = Duration::from_millis(100);

fn labelled(label: &str) -> LockManagerBuilder {
    LockManager::builder().label(label)
}

async fn next(observer: &mut Observer) -> Result<lock_core::admin::LockInfo, LockError> {
    completes_within(SOON, observer.next())
        .await
        .expect("the observer returns something")
}

fn reads(monitor: Monitor) -> usize {
    monitor.stop().client_commands_about("observed")
}

/// A hundred observers of a name cost as many commands as one, and those of two names as many as two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn observers_of_a_name_share_one_command_per_interval() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    // Sends the scripts.
    locks.observe("other").current().await.unwrap();
    let monitor = server.monitor();
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for number in 0..100 {
        let name = if number % 2 == 0 {
            "observed:1"
        } else {
            "observed:2"
        };
        let mut observer = locks.observe(name).interval(INTERVAL);
        tasks.spawn(async move {
            observer.next().await.unwrap();
            let none = tokio::time::timeout(INTERVAL * 10, observer.next()).await;
            assert!(none.is_err(), "{none:?}");
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    let intervals = began.elapsed().as_millis() / INTERVAL.as_millis();
    let sent = reads(monitor);
    // A machine that stands still reads less often. One more for the last interval, and one for a read that began in it.
    assert!(sent >= 4, "{sent}");
    let most = 2 * (intervals + 2);
    assert!(sent as u128 <= most, "{sent} in {intervals} intervals");
}

/// No command without an observer that waits, and one in an interval for calls of `current` in a row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn observer_that_does_not_wait_sends_nothing() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    locks.observe("other").current().await.unwrap();
    let monitor = server.monitor();
    let mut observers = [(); 3].map(|()| locks.observe("observed").interval(SOON));
    for observer in &mut observers {
        observer.next().await.unwrap();
        for _ in 0..10 {
            observer.current().await.unwrap();
        }
    }
    tokio::time::sleep(INTERVAL).await;
    assert_eq!(reads(monitor), 1);
}

/// A future that is dropped in flight leaves its read to the next call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_that_is_dropped_in_flight_sends_nothing_again() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    locks.observe("other").current().await.unwrap();
    let monitor = server.monitor();
    let mut observer = locks.observe("observed").interval(SOON);
    let seen = loop {
        if let Some(seen) = test_support::cut(observer.next(), 1).await {
            break seen;
        }
        tokio::task::yield_now().await;
    };
    assert!(seen.unwrap().holder().is_none());
    assert_eq!(reads(monitor), 1);
}

/// A term after another one of the same process: only the token differs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn observer_sees_each_holder_even_with_the_same_label() {
    let server = RedisServer::start();
    let locks = connect_with(labelled("billing-1"), &server.url()).await;
    let others = connect(&server).await;
    let mut observer = others.observe(NAME).interval(INTERVAL);
    assert!(next(&mut observer).await.unwrap().holder().is_none());
    let mut election = locks.lock(NAME).campaign();
    let mut earlier = None;
    for _ in 0..3 {
        let term = election.next().await.unwrap().unwrap();
        let seen = loop {
            let seen = next(&mut observer).await.unwrap();
            // Between the terms the lock may be free.
            if let Some(holder) = seen.holder() {
                break holder.clone();
            }
        };
        assert_eq!(&*seen.label, "billing-1");
        assert_eq!(seen.token, term.fencing_token());
        assert!(seen.token > earlier && seen.held_for.is_some());
        earlier = seen.token;
        term.resign().await.unwrap();
    }
}

/// An outage is one error, and its end an item, although the lock is as it was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outage_is_reported_once_and_so_is_its_end() {
    let server = RedisServer::start();
    let builder = labelled("one").command_timeout(ms(200));
    let locks = connect_with(builder, &server.url()).await;
    let mut observer = locks.observe(NAME).interval(INTERVAL);
    assert!(next(&mut observer).await.unwrap().holder().is_none());
    server.kill9();
    let error = next(&mut observer).await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    let quiet = tokio::time::timeout(INTERVAL * 5, observer.next()).await;
    assert!(quiet.is_err(), "{quiet:?}");
    // What cannot be read is unknown, and not free.
    observer.current().await.unwrap_err();
    server.restart();
    let back = next(&mut observer).await.unwrap();
    assert!(back.holder().is_none());
    shut_down(&locks).await;
    // An observer holds nothing: a shutdown does not end it.
    assert!(observer.current().await.is_ok());
}
