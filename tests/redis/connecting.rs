//! Connections: callers share as few as possible, and get them in time.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use lock_core::error::BackendErrorKind;
use lock_core::{LockError, LockManager};
use test_support::fixtures::{KEY, LONG, NAME, NOTICE, SLACK, SOON, ms};
use test_support::stand_in::{Answer, Quirk, Target};
use test_support::{Proxy, RedisServer, StandIn, Stopwatch, eventually_async, helper};
use tests::{shut_down, start_waiter};
use tokio::task::JoinSet;

use super::{connect, connect_with};

const CALLERS: usize = 500;

/// Runs [`CALLERS`] callers with this wait. Returns their errors. None of them hangs; how exactly a wait ends is tested
/// with single callers, because so many need much of the time of a busy machine.
async fn callers(locks: &LockManager, wait: Duration) -> Vec<LockError> {
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for number in 0..CALLERS {
        let request = locks.lock(format!("{NAME}:{number}")).wait(wait);
        tasks.spawn(request.acquire());
    }
    let mut errors = Vec::new();
    while let Some(outcome) = tasks.join_next().await {
        match outcome.unwrap() {
            Ok(guard) => guard.release().await.unwrap(),
            Err(error) => errors.push(error),
        }
    }
    assert!(started.elapsed() < wait + SOON, "{:?}", started.elapsed());
    errors
}

#[track_caller]
fn kind(error: &LockError) -> BackendErrorKind {
    match error {
        LockError::Backend(error) => error.kind(),
        other => panic!("{other}"),
    }
}

fn received(server: &RedisServer) -> i64 {
    let info = server.cli(&["INFO", "stats"]);
    let field = "total_connections_received:";
    let line = info
        .text()
        .lines()
        .find_map(|line| line.strip_prefix(field));
    line.unwrap().trim().parse().unwrap()
}

/// All callers share the outcome of one connection attempt, and the next attempt comes after a
/// pause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_of_a_replica_share_few_connections() {
    let wait = ms(1_500);
    let server = RedisServer::start();
    let locks = connect(&server).await;
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    // A caller whose command was lost with the old connection reports that, so none may use it.
    let _noticed = locks.lock(NAME).try_acquire().await.unwrap_err();
    let before = received(&server);
    let errors = callers(&locks, wait).await;
    assert_eq!(errors.len(), CALLERS);
    for error in &errors {
        assert_eq!(kind(error), BackendErrorKind::NotPrimary, "{error}");
    }
    let dials = received(&server) - before;
    // Attempts of the callers' runtime and of the background worker, 10 to 500 ms apart, and one
    // connection of this test.
    assert!(dials <= 40, "{dials}");
}

/// The client pauses between attempts to a server that accepts connections and refuses each
/// command.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_refuses_commands_is_dialed_with_pauses() {
    let wait = ms(1_500);
    let server = RedisServer::start();
    // A replica that doesn't tell its role looks like a primary: only writes fail.
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    let refused = Answer::Error("NOPERM this user has no permissions to run the command".into());
    let quirks = ["ROLE", "HELLO", "INFO"]
        .map(|verb| Quirk::Replies(Target::Command(verb), refused.clone()));
    let stand_in = StandIn::start(&server, quirks);
    let locks = connect_with(LockManager::builder(), &stand_in.url()).await;
    let before = stand_in.accepted();
    let errors = callers(&locks, wait).await;
    assert_eq!(errors.len(), CALLERS);
    // On a busy machine the only poll of a caller may get no reply.
    let timed_out = errors.iter().filter(|error| match kind(error) {
        BackendErrorKind::NotPrimary => false,
        BackendErrorKind::TimedOut => true,
        _ => panic!("{error}"),
    });
    let timed_out = timed_out.count();
    assert!(timed_out < CALLERS / 4, "{timed_out} callers got no reason");
    let dials = stand_in.accepted() - before;
    assert!(dials <= 40, "{dials}");
}

/// As above, at a server that accepts no more clients.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_of_a_full_server_share_few_connections() {
    let wait = ms(1_200);
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let mut admin = server.connect().unwrap();
    admin.call(&["CONFIG", "SET", "maxclients", "1"]).unwrap();
    admin.call(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    let rejected = |admin: &mut test_support::Connection| -> i64 {
        let info = admin.call(&["INFO", "stats"]).unwrap();
        let field = "rejected_connections:";
        let line = info
            .text()
            .lines()
            .find_map(|line| line.strip_prefix(field));
        line.unwrap().trim().parse().unwrap()
    };
    let errors = callers(&locks, wait).await;
    assert_eq!(errors.len(), CALLERS);
    let dials = rejected(&mut admin);
    assert!(dials > 1 && dials <= 40, "{dials}");
}

/// The server comes back. One connection serves all callers, and all get their locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_of_a_restarted_server_share_few_connections() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let patient = LockManager::builder().command_timeout(SOON);
    let locks = connect_with(patient, &proxy.url()).await;
    proxy.refuse();
    proxy.cut_all();
    let waiting = {
        let locks = locks.clone();
        tokio::spawn(async move { callers(&locks, SOON).await })
    };
    tokio::time::sleep(ms(800)).await;
    let before = proxy.accepted();
    proxy.forward();
    let errors = waiting.await.unwrap();
    assert!(errors.is_empty(), "{}", errors[0]);
    // The connections of the callers, of the background worker and of the subscriber.
    let connections = proxy.accepted() - before;
    assert!(connections <= 3, "{connections}");
    shut_down(&locks).await;
}

/// A connection takes three round trips, which is longer than a caller's wait. The client completes
/// it nevertheless, for the next caller.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_waits_do_not_prevent_a_connection() {
    let (round_trip, wait) = (ms(100), ms(180));
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_with(LockManager::builder(), &proxy.url()).await;
    proxy.delay_round_trip(round_trip);
    proxy.cut_all();
    let cut = Stopwatch::start();
    let mut calls = 0;
    let guard = loop {
        let outcome = locks.lock(NAME).wait(wait).acquire().await;
        calls += 1;
        if let Ok(guard) = outcome {
            break guard;
        }
        assert!(cut.elapsed() < SOON, "{calls} calls, and none got the lock");
    };
    let took = cut.elapsed();
    assert!(
        took < round_trip * 8 + SLACK + cut.stalled(),
        "{took:?}, {calls} calls"
    );
    guard.release().await.unwrap();
}

/// A caller with time left retries after the first failure. At the end of its wait it gets the last
/// failure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_ends_with_the_last_failure() {
    let server = RedisServer::start();
    let builder = LockManager::builder().command_timeout(ms(400));
    let locks = connect_with(builder, &server.url()).await;
    server.kill9();
    for (wait, bound) in [
        (None, ms(400)),
        (Some(ms(150)), ms(150)),
        (Some(ms(900)), ms(900)),
    ] {
        let request = locks.lock(NAME);
        let request = match wait {
            Some(wait) => request.wait(wait),
            None => request,
        };
        let started = Stopwatch::start();
        let error = request.acquire().await.unwrap_err();
        let took = started.elapsed();
        assert!(
            took < bound + NOTICE + SLACK + started.stalled(),
            "{took:?} for {wait:?}"
        );
        assert_eq!(kind(&error), BackendErrorKind::Unreachable);
        assert!(error.to_string().contains("connection refused"), "{error}");
    }
}

/// The server first refuses connections and then does not reply: the caller gets the latter error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn early_failure_does_not_hide_the_last_failure() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let builder = LockManager::builder().command_timeout(ms(200));
    let locks = connect_with(builder, &proxy.url()).await;
    proxy.refuse();
    proxy.cut_all();
    let waiting = tokio::spawn(locks.lock(NAME).wait(ms(3_000)).acquire());
    tokio::time::sleep(ms(300)).await;
    proxy.black_hole();
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(kind(&error), BackendErrorKind::TimedOut, "{error}");
}

/// An error that waiting cannot cure is returned at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_password_is_reported_at_once() {
    let server = RedisServer::options().password("right").start();
    let locks = connect(&server).await;
    let mut admin = server.connect().unwrap();
    admin
        .call(&["CONFIG", "SET", "requirepass", "other"])
        .unwrap();
    admin.call(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    let started = Stopwatch::start();
    let error = locks.lock(NAME).wait(SOON).acquire().await.unwrap_err();
    assert_eq!(kind(&error), BackendErrorKind::Authentication, "{error}");
    let took = started.elapsed();
    assert!(took < SLACK * 2 + started.stalled(), "{took:?}");
}

/// The lock connection of a waiter is cut. The waiter gets its grant over the subscriber's
/// connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_without_a_connection_gets_its_grant() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    proxy.record();
    let local = connect(&server).await;
    let proxied = connect_with(LockManager::builder(), &proxy.url()).await;
    let held = local.lock(NAME).acquire().await.unwrap();
    let waiting = start_waiter(&server, proxied.lock(NAME).ttl(LONG).wait(SOON), 1).await;
    // On a busy machine the waiter may begin to poll, before it is subscribed.
    let is_subscribed = async || {
        let entries = server.cli(&["ZRANGE", &format!("{{{KEY}}}:q"), "-1", "-1"]);
        let entry = entries.array().first().map(|entry| entry.text());
        entry.is_some_and(|entry| entry.split(' ').nth(1) == Some("s"))
    };
    eventually_async(SOON, is_subscribed).await;
    let is_pubsub = |at: &usize| {
        let requests = proxy.requests(*at);
        requests.windows(9).any(|it| it == b"SUBSCRIBE")
    };
    let (subscribers, others): (Vec<_>, Vec<_>) = (0..proxy.accepted()).partition(is_pubsub);
    assert_eq!(subscribers.len(), 1);
    proxy.refuse();
    for other in others {
        proxy.cut(other);
    }
    // The waiter polls and finds its connection cut.
    tokio::time::sleep(ms(1_500)).await;
    held.release().await.unwrap();
    let granted = tokio::time::timeout(ms(600), waiting).await;
    let guard = granted.expect("the notification came").unwrap().unwrap();
    proxy.forward();
    guard.release().await.unwrap();
    assert_eq!(server.cli(&["EXISTS", KEY]).integer(), 0);
}

/// Callers of `current_or_connect` share the manager that `DISTRIBUTED_LOCK_URL` names, and its failure.
#[test]
fn current_or_connect_shares_one_failure_among_callers() {
    // The kernel accepts connections, and nothing replies.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", silent.local_addr().unwrap());
    let process = helper!("lock-holder")
        .env("DISTRIBUTED_LOCK_URL", &url)
        .arg("current")
        .arg("20")
        .spawn();
    let record = process.record(SOON, |record| record.get("calls").is_some());
    let calls = record["calls"].as_array().unwrap();
    assert_eq!(calls.len(), 20);
    for call in calls {
        let took = call["ms"].as_u64().unwrap();
        assert!(took <= 1_000 + 250 + 300, "{call}");
        let text = call["error"].as_str().unwrap();
        assert!(
            text.contains("DISTRIBUTED_LOCK_URL") && text.contains("no answer in time"),
            "{text}"
        );
    }
    // The wait of an annotated function limits connecting too.
    let annotated = &record["annotated"];
    assert!(
        annotated["ms"].as_u64().unwrap() <= 200 + 250 + 300,
        "{annotated}"
    );
}

/// A runtime that is blocked while it connects does not delay other runtimes.
#[test]
fn blocked_runtime_does_not_delay_connects_of_other_runtimes() {
    let server = RedisServer::start();
    let process = helper!("lock-holder")
        .env("DISTRIBUTED_LOCK_URL", server.url())
        .arg("standstill")
        .spawn();
    let record = process.record(SOON, |record| record.get("ms").is_some());
    assert_eq!(record["outcome"], "connected");
    assert!(record["ms"].as_u64().unwrap() < 1_000, "{record}");
    assert_eq!(record["later"], "connected", "{record}");
}

/// The manager does not keep the failure: the next call connects to a server that was started
/// later.
#[test]
fn current_or_connect_connects_after_an_earlier_failure() {
    let server = RedisServer::start();
    server.kill9();
    let process = helper!("lock-holder")
        .env("DISTRIBUTED_LOCK_URL", server.url())
        .arg("current")
        .arg("3")
        .spawn();
    let record = process.record(SOON, |record| record.get("calls").is_some());
    let text = record["calls"][0]["error"].as_str().unwrap().to_owned();
    assert!(
        text.contains("connection refused") && text.contains("DISTRIBUTED_LOCK_URL"),
        "{text}"
    );
    server.restart();
    process.send_line("again");
    let record = process.record(SOON, |record| record.get("again").is_some());
    assert_eq!(record["again"], "connected");
    // `current` itself never connects.
    assert_eq!(record["without_io"], serde_json::json!([false, true]));
}

/// `connect` returns the error, and not the first lock.
#[tokio::test]
async fn connect_rejects_a_cluster_node() {
    let server = RedisServer::options()
        .args(["--cluster-enabled", "yes"])
        .start();
    // Also for a user that may not run `INFO`.
    server.cli(&[
        "ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-info",
    ]);
    let restricted = format!("redis://app:pw@{}", server.address());
    for url in [server.url(), restricted] {
        let error = LockManager::connect(&url).await.unwrap_err();
        assert_eq!(kind(&error), BackendErrorKind::Unsupported);
        let text = error.to_string();
        assert!(text.contains("node of a Redis Cluster"), "{text}");
        assert!(text.contains(&server.address().to_string()), "{text}");
    }
}

/// An address translator forgets a connection that is idle for minutes.
#[tokio::test]
async fn idle_connections_are_kept_alive() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let to_server = format!("0100007F:{:04X}", server.port());
    let timers: Vec<_> = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        // Established connections to the server.
        .filter(|words| words.get(2) == Some(&to_server.as_str()) && words[3] == "01")
        .map(|words| words[5].to_owned())
        .collect();
    assert!(!timers.is_empty());
    // `02` is the timer of keepalive probes, with the time to the next probe in hundredths of a
    // second.
    for timer in &timers {
        let (kind, left) = timer.split_once(':').unwrap();
        let left = u64::from_str_radix(left, 16).unwrap();
        assert!(kind == "02" && left <= 3_000, "{timers:?}");
    }
    eventually_async(SOON, async || locks.lock(NAME).try_acquire().await.is_ok()).await;
}
