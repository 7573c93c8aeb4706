//! Readers, writers and permits between real processes, of which the tests kill one.

use std::time::{Duration, Instant};

use lock_core::{LockGuard, LockManager, LockRequest};
use test_support::fixtures::{AT_ONCE, NAME, QUEUE, SOON, keys, ms, time_to_expiry};
use test_support::process::Process;
use test_support::{RedisServer, eventually, helper};
use tests::{connect, shut_down};
use tokio::task::JoinHandle;

/// The ttl of all holders that the tests kill.
const TTL: Duration = ms(3_000);
/// How late an expired holder may be noticed on a busy machine. Less than half of the ttl, by which the renewal of a living
/// one would prolong it.
const LATE: Duration = ms(1_000);

/// Starts a process that waits for a lock of this kind, and holds it.
fn start(server: &RedisServer, kind: &str) -> Process {
    let worker = helper!("lock-worker").env("DISTRIBUTED_LOCK_URL", server.url());
    let worker = worker.arg("hold").arg(kind).arg(NAME);
    worker.arg(TTL.as_millis().to_string()).arg("60000").spawn()
}

/// The names of a set, in the order of their keys.
const SET: [&str; 2] = ["a", NAME];

/// Starts a process that waits for the locks of [`SET`], and holds them.
fn start_set(server: &RedisServer) -> Process {
    let worker = helper!("lock-worker").env("DISTRIBUTED_LOCK_URL", server.url());
    let worker = SET.iter().fold(worker.arg("set"), |it, name| it.arg(*name));
    worker.arg(TTL.as_millis().to_string()).arg("60000").spawn()
}

fn wait_until_held(process: &Process) {
    process.record(SOON, |record| record.get("held").is_some());
}

fn wait_for_queue(server: &RedisServer, length: i64) {
    eventually(SOON, || server.cli(&["ZCARD", QUEUE]).integer() == length);
}

/// Waits until the server has noticed the death of a waiter: it has this many subscribers.
fn wait_for_subscribers(server: &RedisServer, count: usize) {
    eventually(SOON, || {
        server.cli(&["PUBSUB", "CHANNELS"]).array().len() == count
    });
}

fn request(locks: &LockManager) -> LockRequest {
    // A short ttl makes the living holders renew several times in each test.
    locks.lock(NAME).ttl(TTL).wait(SOON)
}

fn spawn(request: LockRequest) -> JoinHandle<(LockGuard, Instant)> {
    tokio::spawn(async move {
        let guard = request.acquire().await.unwrap();
        (guard, Instant::now())
    })
}

/// Asserts how long after the kill the lock was granted, and releases it.
async fn granted_within(waiting: JoinHandle<(LockGuard, Instant)>, since: Instant, most: Duration) {
    let (guard, granted) = waiting.await.unwrap();
    let took = granted - since;
    assert!(took <= most, "{took:?}");
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
}

async fn nothing_is_left(server: &RedisServer, locks: &[&LockManager]) {
    for locks in locks {
        shut_down(locks).await;
    }
    eventually(SOON, || keys(server).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_reader_costs_a_writer_its_own_ttl() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let living = request(&locks).read().acquire().await.unwrap();
    let dead = start(&server, "read");
    wait_until_held(&dead);
    let writer = spawn(request(&locks).write());
    wait_for_queue(&server, 1);

    let killed = Instant::now();
    dead.kill9();
    // The living reader renews while the dead one expires.
    tokio::time::sleep(TTL / 2).await;
    living.renew().await.unwrap();
    living.release().await.unwrap();
    granted_within(writer, killed, TTL + LATE).await;
    nothing_is_left(&server, &[&locks]).await;
}

/// Readers that share one expiry would keep the dead one alive until the last of them has released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_reader_is_gone_when_others_renewed_longer() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let living = request(&locks).read().acquire().await.unwrap();
    let dead = start(&server, "read");
    wait_until_held(&dead);
    let writer = spawn(request(&locks).write());
    wait_for_queue(&server, 1);

    dead.kill9();
    tokio::time::sleep(TTL + LATE).await;
    assert!(!living.is_lost(), "the living reader was renewed");
    assert!(!writer.is_finished(), "a writer came in beside a reader");
    let released = Instant::now();
    living.release().await.unwrap();
    granted_within(writer, released, AT_ONCE).await;
    nothing_is_left(&server, &[&locks]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_holder_of_a_permit_costs_its_own_ttl_though_others_renew() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let living = request(&locks).permits(2).acquire().await.unwrap();
    let dead = start(&server, "2");
    wait_until_held(&dead);
    let next = spawn(request(&locks).permits(2));
    wait_for_queue(&server, 1);

    let killed = Instant::now();
    dead.kill9();
    granted_within(next, killed, TTL + LATE).await;
    assert!(!living.is_lost(), "the living holder was renewed");
    living.release().await.unwrap();
    nothing_is_left(&server, &[&locks]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_waiting_writer_keeps_no_reader_out() {
    let server = RedisServer::start();
    let [locks, others] = [connect(&server).await, connect(&server).await];
    let reader = request(&locks).read().acquire().await.unwrap();
    let dead = start(&server, "exclusive");
    wait_for_queue(&server, 1);
    let behind = spawn(request(&locks).read());
    wait_for_queue(&server, 2);

    dead.kill9();
    wait_for_subscribers(&server, 1);
    // The next reader removes the dead writer, and the waiting reader comes in with it.
    let asked = Instant::now();
    let next = spawn(request(&others).read());
    granted_within(next, asked, AT_ONCE).await;
    granted_within(behind, asked, AT_ONCE).await;
    assert!(!reader.is_lost());
    reader.release().await.unwrap();
    assert_eq!(dead.lines(), Vec::<String>::new());
    nothing_is_left(&server, &[&locks, &others]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_waiting_writer_costs_a_reader_nothing_at_the_release() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let writer = request(&locks).write().acquire().await.unwrap();
    let dead = start(&server, "exclusive");
    wait_for_queue(&server, 1);
    let behind = spawn(request(&locks).read());
    wait_for_queue(&server, 2);

    dead.kill9();
    wait_for_subscribers(&server, 1);
    let released = Instant::now();
    writer.release().await.unwrap();
    granted_within(behind, released, AT_ONCE).await;
    nothing_is_left(&server, &[&locks]).await;
}

/// A waiting set holds the locks before the one that it waits for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_waiting_set_costs_its_own_ttl_at_most() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    // The set has the lock `a`, and stands in the queue of the second one.
    let busy = request(&locks).acquire().await.unwrap();
    let dead = start_set(&server);
    wait_for_queue(&server, 1);
    let early = spawn(locks.lock("a").ttl(TTL).wait(SOON));
    eventually(SOON, || server.cli(&["ZCARD", "{lock:a}:q"]).integer() == 1);

    dead.kill9();
    granted_within(early, Instant::now(), TTL + LATE).await;
    wait_for_subscribers(&server, 1);
    let next = spawn(request(&locks));
    wait_for_queue(&server, 2);
    let released = Instant::now();
    busy.release().await.unwrap();
    granted_within(next, released, AT_ONCE).await;
    assert_eq!(dead.lines(), Vec::<String>::new());
    nothing_is_left(&server, &[&locks]).await;
}

/// No lock of the set comes earlier than its lease ends, and each comes by the ttl.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_holder_of_a_set_costs_its_own_ttl_and_not_less() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let dead = start_set(&server);
    wait_until_held(&dead);
    let key = |name: &str| format!("lock:{name}");
    let token = |name: &str| {
        let value = server.cli(&["GET", &key(name)]);
        let token = value.text().split(' ').nth(1).map(str::parse::<u64>);
        token.expect("the lock is held").unwrap()
    };
    let tokens = SET.map(token);
    let waiters = |name: &str, count: i64| {
        let queue = format!("{{lock:{name}}}:q");
        eventually(SOON, || server.cli(&["ZCARD", &queue]).integer() == count);
    };
    let singles = SET.map(|name| spawn(locks.lock(name).ttl(TTL).wait(SOON)));
    for name in SET {
        waiters(name, 1);
    }
    let set = tokio::spawn(locks.lock_all(SET).ttl(TTL).wait(SOON).acquire());
    waiters(SET[0], 2);
    // The living process renews both locks.
    tokio::time::sleep(TTL * 3 / 2).await;
    assert!(singles.iter().all(|waiting| !waiting.is_finished()));
    assert_eq!(SET.map(token), tokens);

    dead.kill9();
    let killed = Instant::now();
    let left = SET.map(|name| time_to_expiry(&server, &key(name)));
    for (at, single) in singles.into_iter().enumerate() {
        let (guard, granted) = single.await.unwrap();
        let took = granted - killed;
        assert!(took <= TTL + LATE, "{}: {took:?}", SET[at]);
        assert!(took >= left[at], "{}: {took:?} of {left:?}", SET[at]);
        let next = guard.fencing_token().expect("every grant has a token");
        assert!(next.as_u64() > tokens[at], "{next} after {}", tokens[at]);
        guard.release().await.unwrap();
    }
    let set = set.await.unwrap().unwrap();
    assert!(!set.is_lost());
    for (at, name) in SET.into_iter().enumerate() {
        let next = set.fencing_token_of(name).expect("every grant has a token");
        assert!(next.as_u64() > tokens[at] + 1, "{next}");
    }
    set.release().await.unwrap();
    nothing_is_left(&server, &[&locks]).await;
}

/// A set of another process waits for the killed one, and gets all of its locks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_set_gets_all_locks_of_a_killed_one_within_a_ttl() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let dead = start_set(&server);
    wait_until_held(&dead);
    let next = start_set(&server);
    eventually(SOON, || server.cli(&["ZCARD", "{lock:a}:q"]).integer() == 1);
    dead.kill9();
    let killed = Instant::now();
    let left = SET.map(|name| time_to_expiry(&server, &format!("lock:{name}")));
    wait_until_held(&next);
    let took = killed.elapsed();
    assert!(took <= TTL + LATE, "{took:?}");
    assert!(took >= left[0].max(left[1]), "{took:?} of {left:?}");
    // It renews what it got.
    let busy = locks.lock_all(SET).try_acquire().await.unwrap();
    assert!(busy.is_none(), "{busy:?}");
    tokio::time::sleep(TTL + LATE).await;
    let busy = locks.lock_all(SET).wait(ms(50)).acquire().await;
    assert!(busy.unwrap_err().is_contended());
    next.kill9();
    let set = locks.lock_all(SET).wait(TTL + LATE).acquire().await;
    set.unwrap().release().await.unwrap();
    nothing_is_left(&server, &[&locks]).await;
}
