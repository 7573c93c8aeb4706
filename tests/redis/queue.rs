//! Waiting behind the dead, behind many, and behind keys that are no locks.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lock_core::{LockError, LockManager};
use test_support::fixtures::{COUNTER, KEY, LONG, NAME, NOTICE, QUEUE, SLACK, SOON, ms};
use test_support::{Proxy, RedisServer, Reply, eventually, eventually_async};
use tests::{shut_down, start_waiter};

use super::{connect, connect_with};

/// The server's clock, in milliseconds.
fn server_ms(server: &RedisServer) -> i64 {
    let time = server.cli(&["TIME"]);
    let part = |at: usize| -> i64 { time.array()[at].text().parse().unwrap() };
    part(0) * 1_000 + part(1) / 1_000
}

/// An entry of a waiter that is not there: `kind` behind its mode, and when its time ends.
fn entry(number: usize, mode: &str, expires_in: i64, server: &RedisServer) -> String {
    let expires_at = server_ms(server) + expires_in;
    format!("{number:08x}-dead-4dea-8dea-deaddeaddead {mode} 2000 {expires_at} lk1:unknown dead:1")
}

/// Puts entries of dead waiters into the queue, behind whoever stands there.
fn crowd(server: &RedisServer, count: usize, mode: &str, expires_in: i64) {
    let one = entry(0, mode, expires_in, server);
    let (_, rest) = one.split_at(8);
    let mut connection = server.connect().unwrap();
    for chunk in (0..count).collect::<Vec<_>>().chunks(500) {
        let mut words = vec!["ZADD".to_owned(), QUEUE.to_owned()];
        for number in chunk {
            words.push((number + 1).to_string());
            words.push(format!("{number:08x}{rest}"));
        }
        connection.call(&words).unwrap();
    }
}

pub(super) const MINUTES: i64 = 600_000;

/// What a holder leaves that died.
const DEAD_HOLDER: &str = "lk1:6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 1 1 dead";

/// All before a live waiter are dead, and the holder dies.
async fn behind_the_dead(dead: usize) {
    let ttl = ms(1_500);
    let server = RedisServer::start();
    let locks = connect(&server).await;
    server.cli(&["SET", KEY, DEAD_HOLDER, "PX", "1500"]);
    let started = Instant::now();
    crowd(&server, dead, "s", MINUTES);
    let request = locks.lock(NAME).ttl(LONG).wait(SOON);
    let guard = request.acquire().await.unwrap();
    let took = started.elapsed();
    // The expiry, its jitter, and a round trip for each hundred.
    assert!(
        took >= ttl && took < ttl + NOTICE + SLACK,
        "{dead} dead: {took:?}"
    );
    guard.release().await.unwrap();
    assert_eq!(server.cli(&["EXISTS", QUEUE]).integer(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_waiters_ahead_cost_a_quarter_of_a_second_at_most() {
    let (few, some, many) = (
        behind_the_dead(100),
        behind_the_dead(300),
        behind_the_dead(1_000),
    );
    tokio::join!(few, some, many);
}

/// An attempt never finds a lock held because of dead waiters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn try_acquire_passes_any_number_of_dead_waiters() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    for (dead, mode, expires_in) in [(1, "s", MINUTES), (2_500, "s", MINUTES), (750, "p", -1)] {
        crowd(&server, dead, mode, expires_in);
        let got = locks.lock(NAME).try_acquire().await.unwrap();
        got.expect("no live client has it").release().await.unwrap();
        assert_eq!(server.cli(&["EXISTS", QUEUE]).integer(), 0);
    }
}

/// A release looks at a hundred entries, and the background worker does the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_call_looks_at_more_than_a_hundred_entries() {
    const DEAD: usize = 10_000;
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    crowd(&server, DEAD, "s", MINUTES);
    let count = i64::try_from(DEAD).unwrap() + 1;
    let waiting = start_waiter(&server, locks.lock(NAME).ttl(LONG).wait(SOON), count).await;
    let monitor = server.monitor();
    held.release().await.unwrap();
    let guard = tokio::time::timeout(SOON, waiting)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    guard.release().await.unwrap();
    let recording = monitor.stop();
    let mut most = 0;
    for command in recording
        .all()
        .iter()
        .filter(|command| command.is_from_script())
    {
        match command.name().as_str() {
            "ZREM" => most = most.max(command.words.len() - 2),
            "ZRANGE" => {
                let last: i64 = command.words[3].parse().unwrap();
                assert!(last < 100, "{command:?}");
            }
            _ => {}
        }
    }
    assert!((100..=101).contains(&most), "{most}");
    let counts = recording
        .all()
        .iter()
        .filter(|command| command.name() == "PUBSUB");
    // One for their channel in each call, and not one for each of them.
    assert!(counts.count() <= DEAD / 100 + 4);
    shut_down(&locks).await;
    assert_eq!(server.cli(&["EXISTS", QUEUE]).integer(), 0);
}

/// A free lock is had, however short the wait for it is.
#[tokio::test]
async fn the_shortest_wait_asks_once() {
    let server = RedisServer::start();
    for locks in [connect(&server).await, LockManager::in_memory()] {
        for wait in [Duration::from_nanos(1), Duration::from_micros(1), ms(1)] {
            let guard = locks.lock(NAME).ttl(LONG).wait(wait).acquire().await;
            let guard = guard.unwrap();
            let started = Instant::now();
            let other = locks.lock(NAME).ttl(LONG).wait(wait).acquire().await;
            assert!(matches!(other, Err(LockError::Timeout { .. })), "{other:?}");
            assert!(started.elapsed() < NOTICE + SLACK);
            guard.release().await.unwrap();
        }
    }
    assert_eq!(server.cli(&["EXISTS", KEY, QUEUE]).integer(), 0);
}

/// A waiter behind many dead ones is granted the lock without a poll: here one that never polls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_background_worker_goes_on_until_a_live_waiter_has_the_lock() {
    const DEAD: usize = 1_000;
    let server = RedisServer::start();
    let locks = connect(&server).await;
    for is_dropped in [false, true] {
        let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
        crowd(&server, DEAD, "s", MINUTES);
        let mut listener = server.connect().unwrap();
        listener.call(&["SUBSCRIBE", "lk1:silent"]).unwrap();
        let expires_at = server_ms(&server) + MINUTES;
        let entry =
            format!("6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 s 2000 {expires_at} lk1:silent web 1");
        server.cli(&["ZADD", QUEUE, "5000", &entry]);
        if is_dropped {
            drop(held);
        } else {
            held.release().await.unwrap();
        }
        // Its notification as the head may come before.
        let grant = loop {
            let message = listener.receive().unwrap();
            let text = message.array()[2].text().to_owned();
            if !text.starts_with("h 6f1c7f9e ") {
                break text;
            }
        };
        let expected = "g 6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 ";
        assert!(grant.starts_with(expected), "{grant}");
        assert_eq!(server.cli(&["EXISTS", QUEUE]).integer(), 0);
        server.cli(&["DEL", KEY]);
    }
}

/// The releaser dies in the middle: the next look of whoever lives goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_releaser_that_dies_halfway_leaves_the_rest_to_the_next_look() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    server.cli(&["SET", KEY, DEAD_HOLDER, "PX", "60000"]);
    crowd(&server, 450, "s", MINUTES);
    let waiting = start_waiter(&server, locks.lock(NAME).ttl(LONG).wait(SOON), 451).await;
    // As one call of a release, and no other one.
    let started = Instant::now();
    server.cli(&["DEL", KEY]);
    server.cli(&["ZREMRANGEBYRANK", QUEUE, "0", "99"]);
    let guard = tokio::time::timeout(SOON, waiting)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let took = started.elapsed();
    assert!(took < Duration::from_secs(5) + SLACK, "{took:?}");
    guard.release().await.unwrap();
}

/// A look while the lock is held takes out those whose time has passed. The others keep their
/// place: their line may be broken for a moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_at_a_held_lock_removes_those_whose_time_has_passed_only() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    crowd(&server, 9, "s", -1_000);
    let waiting = start_waiter(&server, locks.lock(NAME).ttl(LONG).wait(SOON), 10).await;
    let silent = entry(77_777, "s", MINUTES, &server);
    server.cli(&["ZADD", QUEUE, "0", &silent]);
    eventually_async(SOON, async || server.cli(&["ZCARD", QUEUE]).integer() == 2).await;
    assert_eq!(server.cli(&["ZRANK", QUEUE, &silent]).integer(), 0);
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

/// Hundreds wait for twenty minutes, in virtual time. Each stands where it came.
#[tokio::test(start_paused = true)]
async fn waiters_keep_their_place_for_as_long_as_they_wait() {
    const WAITERS: usize = 250;
    let locks = LockManager::in_memory();
    let held = locks.lock(NAME).acquire().await.unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for number in 0..WAITERS {
        let (locks, order) = (locks.clone(), Arc::clone(&order));
        tasks.push(tokio::spawn(async move {
            let request = locks.lock(NAME).wait(LONG * 60);
            let guard = request.acquire().await.unwrap();
            order.lock().unwrap().push(number);
            guard.release().await.unwrap();
        }));
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(LONG * 20).await;
    let released = tokio::time::Instant::now();
    held.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(released.elapsed() < ms(1), "{:?}", released.elapsed());
    let order = order.lock().unwrap();
    assert_eq!(*order, (0..WAITERS).collect::<Vec<_>>());
}

/// A thousand waiters of one manager ask the server about as often as a few do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiters_of_a_manager_look_seldom() {
    const WAITERS: i64 = 1_000;
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..WAITERS {
        waiting.spawn(locks.lock(NAME).ttl(LONG).wait(SOON * 3).acquire());
    }
    let queued = async || server.cli(&["ZCARD", QUEUE]).integer() == WAITERS;
    eventually_async(SOON, queued).await;
    let monitor = server.monitor();
    held.release().await.unwrap();
    while let Some(outcome) = waiting.join_next().await {
        outcome.unwrap().unwrap().release().await.unwrap();
    }
    let commands = monitor.stop().client_commands_about(NAME);
    // They came before the recording, so that each is left with its release.
    let sections = usize::try_from(WAITERS).unwrap();
    assert!(commands <= sections + sections / 10 + 1, "{commands}");
}

/// The counter is what fails, and it comes before all that cannot be taken back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_counter_leaves_the_queue_as_it_was() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    crowd(&server, 3, "s", MINUTES);
    let waiting = start_waiter(&server, locks.lock(NAME).ttl(LONG).wait(SOON), 4).await;
    let queue = || server.cli(&["ZRANGE", QUEUE, "0", "-1", "WITHSCORES"]);
    let before = queue();
    server.cli(&["DEL", COUNTER]);
    server.cli(&["LPUSH", COUNTER, "x"]);
    let error = held.release().await.unwrap_err();
    assert!(matches!(error, LockError::ForeignKey { .. }), "{error}");
    assert_eq!(
        server.cli(&["EXISTS", KEY]).integer(),
        0,
        "it is free all the same"
    );
    assert_eq!(queue(), before, "the waiter keeps its place");
    server.cli(&["DEL", COUNTER]);
    let guard = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap();
    // It learned by its own poll: of the broken counter, or of its lock after the repair.
    if let Ok(guard) = guard {
        guard.release().await.unwrap();
    }
}

/// Each break of the line gives a waiter a new entry. What cannot come back is forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_breaks_often_makes_no_look_longer() {
    let server = RedisServer::start();
    let builder = LockManager::builder().command_timeout(ms(100));
    let locks = connect_with(builder, &server.url()).await;
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    let waiting = start_waiter(&server, locks.lock(NAME).ttl(LONG).wait(SOON * 3), 1).await;
    let monitor = server.monitor();
    for _ in 0..60 {
        server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        tokio::time::sleep(ms(40)).await;
    }
    let recording = monitor.stop();
    let polls = recording.from_clients().filter(|command| {
        command.name() == "EVALSHA" && command.words.get(3).is_some_and(|key| key == KEY)
    });
    let longest = polls.map(|command| command.words.len()).max().unwrap();
    // Hash, count, four keys, eight arguments; and what was sent within the last command timeout.
    assert!(longest <= 3 + 4 + 8 + 8, "{longest} words");
    assert_eq!(
        server.cli(&["ZCARD", QUEUE]).integer(),
        1,
        "one entry stands"
    );
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

/// A release takes any number of entries.
#[test]
fn a_release_of_ten_thousand_entries_is_carried_out() {
    let server = RedisServer::start();
    crowd(&server, 10_000, "s", MINUTES);
    let script = include_str!("../../lock-core/src/backend/redis/scripts/release.lua");
    let grant_next = include_str!("../../lock-core/src/backend/redis/scripts/grant_next.lua");
    let script = script.replace("-- include grant_next.lua\n", grant_next);
    let mut words: Vec<String> = ["EVAL", &script, "4", KEY, QUEUE, COUNTER, "{lock:job}:g"]
        .map(ToOwned::to_owned)
        .into();
    let id = "6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10";
    words.extend([id, "0", "0", "0", "0", "me", ""].map(ToOwned::to_owned));
    let all = server.cli(&["ZRANGE", QUEUE, "0", "-1"]);
    words.extend(all.array().iter().map(|entry| entry.text().to_owned()));
    let answer = server.cli(&words);
    assert_eq!(answer.array()[0].text(), "gone", "{answer:?}");
    assert_eq!(server.cli(&["EXISTS", QUEUE]).integer(), 0);
}

/// A waiter without notifications that dies is skipped after a few polls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_waiter_that_polled_is_skipped_after_a_few_polls() {
    let timeout = ms(200);
    let server = RedisServer::start();
    server.cli(&["ACL", "SETUSER", "unheard", "on", ">pass", "~*", "+@all"]);
    let locks = connect(&server).await;
    let proxy = Proxy::in_front_of(&server);
    let url = format!("redis://unheard:pass@{}", proxy.address());
    let builder = LockManager::builder().command_timeout(timeout);
    let polls = connect_with(builder, &url).await;
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    let dead = tokio::spawn(polls.lock(NAME).ttl(ms(300)).wait(LONG * 5).acquire());
    eventually(SOON, || server.cli(&["ZCARD", QUEUE]).integer() == 1);
    let entries = || server.cli(&["ZRANGE", QUEUE, "0", "-1"]);
    let first = entries();
    eventually(SOON, || entries() != first && entries().array().len() == 1);
    let expires_at: i64 = entries().array()[0]
        .text()
        .split(' ')
        .nth(3)
        .unwrap()
        .parse()
        .unwrap();
    // A poll each 100 ms, four of them and two answers.
    let left = expires_at - server_ms(&server);
    assert!(left > 0 && left <= 800 + 50, "{left}");
    proxy.black_hole();
    let silent = Instant::now();
    let behind = start_waiter(&server, locks.lock(NAME).ttl(LONG).wait(SOON), 2).await;
    tokio::time::sleep((ms(1_000)).saturating_sub(silent.elapsed())).await;
    held.release().await.unwrap();
    let guard = tokio::time::timeout(ms(400), behind).await;
    guard
        .expect("the dead one is skipped")
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
    dead.abort();
    proxy.forward();
}

/// What a newer version may write into the queue: it is left to that version.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_of_a_newer_version_is_neither_removed_nor_passed() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let mut newer = server.connect().unwrap();
    newer.call(&["SUBSCRIBE", "lk1:newer"]).unwrap();
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    let expires_at = server_ms(&server) + MINUTES;
    let entry =
        format!("6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 s4x2 2000 {expires_at} lk1:newer web 1");
    server.cli(&["ZADD", QUEUE, "1", &entry]);
    let waiting = start_waiter(&server, locks.lock(NAME).ttl(LONG).wait(SOON), 2).await;
    held.release().await.unwrap();
    // The head notification, with the first digits of its id, comes at once.
    let message = newer.receive().unwrap();
    let words: Vec<_> = message.array()[2].text().split(' ').collect();
    assert_eq!((words[0], words[1], words[3]), ("h", "6f1c7f9e", "0"));
    assert_eq!(
        server.cli(&["EXISTS", KEY]).integer(),
        0,
        "the key is left free"
    );
    let none = locks.lock(NAME).try_acquire().await.unwrap();
    assert!(none.is_none(), "it goes before whoever tries");
    assert_eq!(server.cli(&["ZRANK", QUEUE, &entry]).integer(), 0);
    assert!(!waiting.is_finished());
    // Once it has gone, the next one has its turn.
    drop(newer);
    let guard = tokio::time::timeout(SOON, waiting)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(server.cli(&["ZRANK", QUEUE, &entry]), Reply::Nil);
    guard.release().await.unwrap();
}

/// A malformed queue entry is no waiter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_entry_is_removed_when_the_key_is_free() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    for rubbish in ["", "x", "a b c d e f", "\r\n", "6f1c7f9e s 1 2"] {
        server.cli(&["ZADD", QUEUE, "1", rubbish]);
        let got = locks.lock(NAME).try_acquire().await.unwrap();
        got.expect("there is no waiter").release().await.unwrap();
        assert_eq!(server.cli(&["EXISTS", QUEUE]).integer(), 0);
    }
}
