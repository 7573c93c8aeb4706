//! Connections: as few as there can be, shared by all who wait, and made in time.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use lock_core::{BackendErrorKind, LockError, LockManager};
use test_support::fixtures::{KEY, LONG, NAME, NOTICE, SLACK, SOON, ms};
use test_support::{Proxy, RedisServer, eventually_async, helper};
use tests::{shut_down, start_waiter};
use tokio::task::JoinSet;

use super::{connect, connect_with};

const CALLERS: usize = 2_000;

/// So many callers, who each wait for so long. Their errors, and how long the last one took.
async fn callers(locks: &LockManager, wait: Duration) -> (Vec<LockError>, Duration) {
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
    (errors, started.elapsed())
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

/// Each who waits shares what comes of the one dial, and the next one comes after a pause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_of_a_replica_share_few_connections() {
    let wait = ms(1_500);
    let server = RedisServer::start();
    let locks = connect(&server).await;
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    server.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
    let before = received(&server);
    let (errors, took) = callers(&locks, wait).await;
    assert!(took < wait + NOTICE + SLACK, "{took:?}");
    assert_eq!(errors.len(), CALLERS);
    for error in &errors {
        assert_eq!(kind(error), BackendErrorKind::NotPrimary, "{error}");
    }
    let dials = received(&server) - before;
    // Of the callers' runtime and of the background thread, 10 to 500 ms apart; and this test's.
    assert!(dials <= 40, "{dials}");
}

/// A server that accepts connections and refuses each command is dialed with pauses too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_refuses_each_command_is_not_dialed_all_the_time() {
    let wait = ms(1_500);
    let server = RedisServer::start();
    let user = [
        "ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-role",
    ];
    server.cli(&user);
    let url = format!("redis://app:pw@{}", server.address());
    // Without ROLE a replica looks like a primary: it refuses writes.
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    let locks = connect_with(LockManager::builder(), &url).await;
    let before = received(&server);
    let (errors, took) = callers(&locks, wait).await;
    assert!(took < wait + NOTICE + SLACK, "{took:?}");
    assert_eq!(errors.len(), CALLERS);
    // On a busy machine the only look of a caller may have had no answer at all.
    let silent = errors.iter().filter(|error| match kind(error) {
        BackendErrorKind::NotPrimary => false,
        BackendErrorKind::TimedOut => true,
        _ => panic!("{error}"),
    });
    let silent = silent.count();
    assert!(silent < CALLERS / 4, "{silent} got no reason");
    let dials = received(&server) - before;
    assert!(dials <= 40, "{dials}");
}

/// As many at a server that is full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_callers_of_a_full_server_share_few_connections() {
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
    let (errors, took) = callers(&locks, wait).await;
    assert!(took < wait + NOTICE + SLACK, "{took:?}");
    assert_eq!(errors.len(), CALLERS);
    let dials = rejected(&mut admin);
    assert!(dials > 1 && dials <= 40, "{dials}");
}

/// The server comes back: one connection for all, and all have what they wanted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_comes_back_meets_no_herd() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_with(LockManager::builder(), &proxy.url()).await;
    proxy.refuse();
    proxy.cut_all();
    let waiting = {
        let locks = locks.clone();
        tokio::spawn(async move { callers(&locks, SOON).await })
    };
    tokio::time::sleep(ms(800)).await;
    let before = proxy.accepted();
    proxy.forward();
    let (errors, _) = waiting.await.unwrap();
    assert!(errors.is_empty(), "{}", errors[0]);
    // That of the callers, of the background thread, and the one for notifications.
    let connections = proxy.accepted() - before;
    assert!(connections <= 3, "{connections}");
    shut_down(&locks).await;
}

/// A connection takes three round trips, which are longer than a caller's wait: it is made all the
/// same, for the next one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_short_wait_does_not_keep_a_connection_from_being_made() {
    let (round_trip, wait) = (ms(100), ms(180));
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_with(LockManager::builder(), &proxy.url()).await;
    proxy.delay_round_trip(round_trip);
    proxy.cut_all();
    let cut = Instant::now();
    let mut calls = 0;
    let guard = loop {
        let outcome = locks.lock(NAME).wait(wait).acquire().await;
        calls += 1;
        if let Ok(guard) = outcome {
            break guard;
        }
        assert!(cut.elapsed() < SOON, "{calls} calls, and none got it");
    };
    let took = cut.elapsed();
    assert!(took < round_trip * 8 + SLACK, "{took:?}, {calls} calls");
    guard.release().await.unwrap();
}

/// A caller with time left does not get the first failure, and a caller without gets the last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_failure_is_returned_at_the_end_of_the_wait() {
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
        let asked = Instant::now();
        let error = request.acquire().await.unwrap_err();
        let took = asked.elapsed();
        assert!(took < bound + NOTICE + SLACK, "{took:?} for {wait:?}");
        assert_eq!(kind(&error), BackendErrorKind::Unreachable);
        assert!(error.to_string().contains("connection refused"), "{error}");
    }
}

/// The server is refused at first and silent at last: the caller hears of the latter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failure_of_long_ago_does_not_hide_the_last_one() {
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

/// What waiting does not cure is said at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_password_is_told_at_once() {
    let server = RedisServer::options().password("right").start();
    let locks = connect(&server).await;
    let mut admin = server.connect().unwrap();
    admin
        .call(&["CONFIG", "SET", "requirepass", "other"])
        .unwrap();
    admin.call(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    let asked = Instant::now();
    let error = locks.lock(NAME).wait(SOON).acquire().await.unwrap_err();
    assert_eq!(kind(&error), BackendErrorKind::Authentication, "{error}");
    assert!(asked.elapsed() < SLACK * 2, "{:?}", asked.elapsed());
}

/// A waiter without a connection is granted the lock all the same: over the other one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_cut_off_hears_of_its_grant() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let ours = connect(&server).await;
    let theirs = connect_with(LockManager::builder(), &proxy.url()).await;
    let held = ours.lock(NAME).acquire().await.unwrap();
    let waiting = start_waiter(&server, theirs.lock(NAME).ttl(LONG).wait(SOON), 1).await;
    // Every connection but the youngest, which is that of the notifications.
    proxy.refuse();
    for connection in 0..proxy.accepted() - 1 {
        proxy.cut(connection);
    }
    // It looks, and finds out.
    tokio::time::sleep(ms(1_500)).await;
    held.release().await.unwrap();
    let granted = tokio::time::timeout(ms(600), waiting).await;
    let guard = granted.expect("the notification came").unwrap().unwrap();
    proxy.forward();
    guard.release().await.unwrap();
    assert_eq!(server.cli(&["EXISTS", KEY]).integer(), 0);
}

/// Callers without a manager share the one that `DISTRIBUTED_LOCK_URL` names, and its failure.
#[test]
fn callers_without_a_manager_share_the_failure_of_its_server() {
    // It accepts, as the kernel does, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", silent.local_addr().unwrap());
    let process = helper!("lock-holder")
        .env("DISTRIBUTED_LOCK_URL", &url)
        .arg("current")
        .arg("20")
        .spawn();
    let said = process.record(SOON, |record| record.get("calls").is_some());
    let calls = said["calls"].as_array().unwrap();
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
    // An annotated function's wait bounds the connecting too.
    let annotated = &said["annotated"];
    assert!(
        annotated["ms"].as_u64().unwrap() <= 200 + 250 + 300,
        "{annotated}"
    );
}

/// A caller whose runtime stands still while it connects keeps no other runtime waiting.
#[test]
fn a_runtime_that_stands_still_holds_up_no_other() {
    let server = RedisServer::start();
    let process = helper!("lock-holder")
        .env("DISTRIBUTED_LOCK_URL", server.url())
        .arg("standstill")
        .spawn();
    let said = process.record(SOON, |record| record.get("ms").is_some());
    assert_eq!(said["outcome"], "connected");
    assert!(said["ms"].as_u64().unwrap() < 1_000, "{said}");
    assert_eq!(said["later"], "connected", "{said}");
}

/// The failure is not kept: the next call finds the server that is there by then.
#[test]
fn a_server_that_comes_later_is_found_by_the_next_call() {
    let server = RedisServer::start();
    server.kill9();
    let process = helper!("lock-holder")
        .env("DISTRIBUTED_LOCK_URL", server.url())
        .arg("current")
        .arg("3")
        .spawn();
    let said = process.record(SOON, |record| record.get("calls").is_some());
    let text = said["calls"][0]["error"].as_str().unwrap().to_owned();
    assert!(
        text.contains("connection refused") && text.contains("DISTRIBUTED_LOCK_URL"),
        "{text}"
    );
    server.restart();
    process.send_line("again");
    let said = process.record(SOON, |record| record.get("again").is_some());
    assert_eq!(said["again"], "connected");
}

/// Refused as it connects, and not at the first lock.
#[tokio::test]
async fn a_node_of_a_cluster_is_refused_at_connect() {
    let server = RedisServer::options()
        .args(["--cluster-enabled", "yes"])
        .start();
    // Also to a user who may not read it in INFO.
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

/// An address translator forgets what is silent for minutes.
#[tokio::test]
async fn idle_connections_are_kept_alive() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let to_server = format!("0100007F:{:04X}", server.port());
    let timers: Vec<_> = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        // Established, to the server.
        .filter(|words| words.get(2) == Some(&to_server.as_str()) && words[3] == "01")
        .map(|words| words[5].to_owned())
        .collect();
    assert!(!timers.is_empty());
    // `02` is the timer of keepalive probes, with the time until the next in hundredths.
    for timer in &timers {
        let (kind, left) = timer.split_once(':').unwrap();
        let left = u64::from_str_radix(left, 16).unwrap();
        assert!(kind == "02" && left <= 3_000, "{timers:?}");
    }
    eventually_async(SOON, async || locks.lock(NAME).try_acquire().await.is_ok()).await;
}
