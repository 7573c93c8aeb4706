//! Locks between real processes. The tests kill and freeze processes, and stop their server.

use std::fs;
use std::time::{Duration, Instant};

use lock_core::{LockError, LockManager, Renew};
use test_support::fixtures::{AT_ONCE, NAME, SLACK, SOON, keys};
use test_support::process::Process;
use test_support::{Helper, RedisServer, Stopwatch, eventually, helper};
use tests::{connect, in_time, shut_down};
use tokio::task::JoinSet;

/// How late an expired holder may be noticed on a busy machine.
const LATE: Duration = Duration::from_secs(1);

fn worker(server: &RedisServer) -> Helper {
    helper!("lock-worker").env("DISTRIBUTED_LOCK_URL", server.url())
}

/// Starts a process whose tasks wait for the lock and hold it.
fn start_holder(server: &RedisServer, ttl: Duration, tasks: u32) -> Process {
    worker(server)
        .arg("acquire")
        .arg(NAME)
        .arg(ttl.as_millis().to_string())
        .arg("60000")
        .arg(tasks.to_string())
        .spawn()
}

fn wait_until_held(process: &Process, within: Duration) {
    process.record(within, |record| record.get("held").is_some());
}

fn wait_for_queue(server: &RedisServer, length: i64) {
    let queue = format!("{{lock:{NAME}}}:q");
    eventually(SOON, || server.cli(&["ZCARD", &queue]).integer() == length);
}

#[test]
fn no_update_of_four_processes_is_lost() {
    const PROCESSES: u32 = 4;
    const TASKS: u32 = 8;
    const ROUNDS: u32 = 12;
    let server = RedisServer::start();
    let file = server.directory().join("counter");
    fs::write(&file, "0").unwrap();
    let start = || {
        let worker = worker(&server).arg("count").arg(&file);
        let worker = worker.arg(TASKS.to_string()).arg(ROUNDS.to_string());
        worker.spawn()
    };
    let processes: Vec<_> = (0..PROCESSES).map(|_| start()).collect();
    for process in &processes {
        assert!(process.wait(SOON).success());
    }
    let counted = fs::read_to_string(&file).unwrap();
    assert_eq!(counted, (PROCESSES * TASKS * ROUNDS).to_string());
}

/// The test runs twice: the next holder is another process, and then a task of this process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_holder_costs_at_most_its_ttl() {
    let ttl = Duration::from_millis(800);
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let first = start_holder(&server, ttl, 1);
    wait_until_held(&first, SOON);
    let second = start_holder(&server, ttl, 1);
    wait_for_queue(&server, 1);
    let third = tokio::spawn(locks.lock(NAME).ttl(ttl).wait(SOON).acquire());
    wait_for_queue(&server, 2);

    let killed = Instant::now();
    first.kill9();
    wait_until_held(&second, SOON);
    let took = killed.elapsed();
    assert!(took <= ttl + LATE, "{took:?}");

    let killed = Instant::now();
    second.kill9();
    let guard = third.await.unwrap().unwrap();
    let took = killed.elapsed();
    assert!(took <= ttl + LATE, "{took:?}");
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    shut_down(&locks).await;
    assert_eq!(keys(&server), Vec::<String>::new());
}

/// A dead waiter is skipped: the script checks for subscribers of its channel before it grants the
/// lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_waiters_cost_nothing() {
    const DEAD: u32 = 3;
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    let dead = start_holder(&server, Duration::from_secs(30), DEAD);
    wait_for_queue(&server, DEAD.into());
    let living = tokio::spawn(locks.lock(NAME).wait(SOON).acquire());
    wait_for_queue(&server, i64::from(DEAD) + 1);

    dead.kill9();
    // The kernel has closed the sockets of the dead process. The server must have noticed.
    eventually(SOON, || {
        server.cli(&["PUBSUB", "CHANNELS"]).array().len() == 1
    });
    let released = Stopwatch::start();
    held.release().await.unwrap();
    let guard = living.await.unwrap().unwrap();
    let took = released.elapsed();
    assert!(took < AT_ONCE + released.stalled(), "{took:?}");
    assert_eq!(dead.lines(), Vec::<String>::new());
    guard.release().await.unwrap();
    assert_eq!(keys(&server), Vec::<String>::new());
}

/// The server cannot distinguish a frozen waiter from a slow one: it costs the handover lease, and
/// not its ttl.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_waiter_costs_one_handover_lease() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    let frozen = start_holder(&server, Duration::from_secs(30), 1);
    wait_for_queue(&server, 1);
    let living = tokio::spawn(locks.lock(NAME).wait(SOON).acquire());
    wait_for_queue(&server, 2);

    frozen.stop();
    let released = Stopwatch::start();
    held.release().await.unwrap();
    let guard = living.await.unwrap().unwrap();
    let took = released.elapsed();
    assert!(
        took < Duration::from_secs(2) + SLACK + released.stalled(),
        "{took:?}"
    );
    // The process continues and finds that its grant expired. It must not use the grant.
    frozen.cont();
    wait_for_queue(&server, 1);
    assert_eq!(frozen.lines(), Vec::<String>::new());
    guard.release().await.unwrap();
    wait_until_held(&frozen, AT_ONCE);
}

/// Returns the outcomes of eight waiters of two managers, which must not exceed their wait. Each
/// waiter holds the lock for a moment.
fn eight_wait(managers: &[LockManager; 2], wait: Duration) -> JoinSet<Result<(), LockError>> {
    let mut waiting = JoinSet::new();
    for number in 0..8 {
        let request = managers[number % 2].lock(NAME).wait(wait);
        waiting.spawn(async move {
            let guard = in_time(wait, request.acquire()).await?;
            tokio::time::sleep(Duration::from_millis(10)).await;
            guard.release().await
        });
    }
    waiting
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_survive_a_restart_of_the_server() {
    let server = RedisServer::start();
    let locks = [connect(&server).await, connect(&server).await];
    let held = locks[0].lock(NAME).acquire().await.unwrap();
    let waiting = eight_wait(&locks, SOON);
    wait_for_queue(&server, 8);
    tokio::task::block_in_place(|| server.restart());
    // The server saved nothing, so the lock is free, and there is time enough for all waiters.
    for outcome in waiting.join_all().await {
        outcome.unwrap();
    }
    let error = held.release().await.unwrap_err();
    assert!(matches!(error, LockError::Lost { .. }), "{error}");
    for locks in locks {
        shut_down(&locks).await;
    }
    assert_eq!(keys(&server), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_of_a_stopped_server_get_an_error() {
    let server = RedisServer::start();
    let locks = [connect(&server).await, connect(&server).await];
    let _held = locks[0].lock(NAME).acquire().await.unwrap();
    let waiting = eight_wait(&locks, Duration::from_secs(4));
    wait_for_queue(&server, 8);
    server.kill9();
    for outcome in waiting.join_all().await {
        let error = outcome.unwrap_err();
        assert!(matches!(error, LockError::Backend(_)), "{error}");
    }
}

/// The server keeps its data over the restart, so the holder and the waiters notice nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_survives_a_restart_with_all_data() {
    let options = RedisServer::options().args(["--appendonly", "yes"]);
    let server = options.args(["--appendfsync", "always"]).start();
    let locks = [connect(&server).await, connect(&server).await];
    let renew = Renew::Every(Duration::from_millis(100));
    let request = locks[0]
        .lock(NAME)
        .ttl(Duration::from_secs(15))
        .renew(renew);
    let held = request.acquire().await.unwrap();
    let waiting = eight_wait(&locks, SOON);
    wait_for_queue(&server, 8);
    tokio::task::block_in_place(|| server.restart());
    held.renew().await.expect("the server kept the lock");
    assert!(!held.is_lost());
    held.release().await.expect("the server kept the lock");
    for outcome in waiting.join_all().await {
        outcome.unwrap();
    }
}

#[test]
fn shutdown_of_a_process_leaves_no_lock() {
    let server = RedisServer::start();
    let process = worker(&server).arg("drop").arg("20").spawn();
    assert!(process.wait(SOON).success());
    assert_eq!(keys(&server), Vec::<String>::new());
    let tokens = server.cli(&["KEYS", "*"]);
    assert!(tokens.array().len() >= 20, "the process acquired no lock");
}
