//! Waiting behind dead waiters, behind many waiters, and behind keys that aren't locks.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lock_core::{LockError, LockGuard, LockManager, LockRequest};
use lock_protocol::scripts::{RELEASE, ScriptForm};
use test_support::fixtures::{COUNTER, KEY, LONG, NAME, NOTICE, QUEUE, SLACK, SOON, ms};
use test_support::{Proxy, RedisServer, Reply, Stopwatch, eventually, eventually_async};
use tests::{Waiter, connect_to, granted, shut_down, start_waiter};

use super::{connect, connect_with};

/// Returns the server's clock, in milliseconds.
fn server_ms(server: &RedisServer) -> i64 {
    let time = server.cli(&["TIME"]);
    let part = |at: usize| -> i64 { time.array()[at].text().parse().unwrap() };
    part(0) * 1_000 + part(1) / 1_000
}

/// Returns the entry of a waiter that does not exist, with its mode and the time to its expiry.
fn entry(number: usize, mode: &str, expires_in: i64, server: &RedisServer) -> String {
    let expires_at = server_ms(server) + expires_in;
    format!("{number:08x}-dead-4dea-8dea-deaddeaddead {mode} 2000 {expires_at} lk1:unknown dead:1")
}

/// Adds entries of dead waiters at the end of the queue.
fn add_dead_waiters(server: &RedisServer, count: usize, mode: &str, expires_in: i64) {
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

/// The value that a dead holder leaves.
const DEAD_HOLDER: &str = "lk1:6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 1 1 dead";

/// All waiters before a live one are dead, and so is the holder.
async fn acquire_behind_dead_waiters(dead: usize) {
    let ttl = ms(1_500);
    let server = RedisServer::start();
    let locks = connect(&server).await;
    server.cli(&["SET", KEY, DEAD_HOLDER, "PX", "1500"]);
    let started = Stopwatch::start();
    add_dead_waiters(&server, dead, "s", MINUTES);
    let request = locks.lock(NAME).ttl(LONG).wait(SOON);
    let guard = request.acquire().await.unwrap();
    let took = started.elapsed();
    // The expiry, its jitter, and a round trip for each hundred entries.
    assert!(
        took >= ttl && took < ttl + NOTICE + SLACK + started.stalled(),
        "{dead} dead: {took:?}"
    );
    guard.release().await.unwrap();
    assert_eq!(server.cli(&["EXISTS", QUEUE]).integer(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_waiters_ahead_cost_at_most_a_quarter_of_a_second() {
    let (few, some, many) = (
        acquire_behind_dead_waiters(100),
        acquire_behind_dead_waiters(300),
        acquire_behind_dead_waiters(1_000),
    );
    tokio::join!(few, some, many);
}

/// An attempt never finds a lock busy because of dead waiters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn try_acquire_skips_any_number_of_dead_waiters() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    for (dead, mode, expires_in) in [(1, "s", MINUTES), (2_500, "s", MINUTES), (750, "p", -1)] {
        add_dead_waiters(&server, dead, mode, expires_in);
        let got = locks.lock(NAME).try_acquire().await.unwrap();
        got.expect("no live client holds the lock")
            .release()
            .await
            .unwrap();
        assert_eq!(server.cli(&["EXISTS", QUEUE]).integer(), 0);
    }
}

/// A release checks a hundred entries, and the background worker does the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_script_call_checks_more_than_a_hundred_entries() {
    const DEAD: usize = 10_000;
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    add_dead_waiters(&server, DEAD, "s", MINUTES);
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
    // One count of their channel's subscribers per call, and not one per entry.
    assert!(counts.count() <= DEAD / 100 + 4);
    shut_down(&locks).await;
    assert_eq!(server.cli(&["EXISTS", QUEUE]).integer(), 0);
}

/// An attempt acquires a free lock, however short the wait is.
#[tokio::test]
async fn shortest_wait_makes_one_attempt() {
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

/// A waiter behind many dead ones is granted the lock without a poll. This waiter never polls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn background_worker_continues_a_grant_until_a_live_waiter() {
    const DEAD: usize = 1_000;
    let server = RedisServer::start();
    let locks = connect(&server).await;
    for is_dropped in [false, true] {
        let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
        add_dead_waiters(&server, DEAD, "s", MINUTES);
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
        // The head-of-queue notification may come before the grant.
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

/// The releaser dies between its calls. The next poll of a live waiter continues the grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn next_poll_continues_the_grant_of_a_dead_releaser() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    server.cli(&["SET", KEY, DEAD_HOLDER, "PX", "60000"]);
    add_dead_waiters(&server, 450, "s", MINUTES);
    let waiting = start_waiter(&server, locks.lock(NAME).ttl(LONG).wait(SOON), 451).await;
    // One call of a release, without the following calls.
    let started = Stopwatch::start();
    server.cli(&["DEL", KEY]);
    server.cli(&["ZREMRANGEBYRANK", QUEUE, "0", "99"]);
    let guard = tokio::time::timeout(SOON, waiting)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let took = started.elapsed();
    assert!(
        took < Duration::from_secs(5) + SLACK + started.stalled(),
        "{took:?}"
    );
    guard.release().await.unwrap();
}

/// A poll of a held lock removes entries whose wait has ended. Other entries keep their place,
/// because their subscriber may be disconnected for a moment only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn poll_of_a_held_lock_removes_only_expired_entries() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    add_dead_waiters(&server, 9, "s", -1_000);
    let silent = entry(77_777, "s", MINUTES, &server);
    server.cli(&["ZADD", QUEUE, "5.5", &silent]);
    let waiting = start_waiter(&server, locks.lock(NAME).ttl(LONG).wait(SOON), 11).await;
    eventually_async(SOON, async || server.cli(&["ZCARD", QUEUE]).integer() == 2).await;
    assert_eq!(server.cli(&["ZRANK", QUEUE, &silent]).integer(), 0);
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

/// Hundreds of waiters wait for twenty minutes of virtual time, and keep their order.
#[tokio::test(start_paused = true)]
async fn waiters_keep_their_place_during_long_waits() {
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

/// A thousand waiters of one manager poll about as often as a few waiters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_waiters_of_one_manager_poll_rarely() {
    const WAITERS: i64 = 1_000;
    let server = RedisServer::start();
    let patient = LockManager::builder().command_timeout(SOON);
    let locks = connect_with(patient, &server.url()).await;
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..WAITERS {
        waiting.spawn(locks.lock(NAME).ttl(LONG).wait(SOON * 3).acquire());
    }
    let queued = async || server.cli(&["ZCARD", QUEUE]).integer() == WAITERS;
    eventually_async(SOON, queued).await;
    let (monitor, started) = (server.monitor(), Instant::now());
    held.release().await.unwrap();
    while let Some(outcome) = waiting.join_next().await {
        let released = outcome.unwrap().unwrap().release().await;
        assert!(
            matches!(released, Ok(()) | Err(LockError::Lost { .. })),
            "{released:?}"
        );
    }
    let commands = monitor.stop().client_commands_about(NAME);
    // The waiters entered the queue before the recording, so each section costs its release only. On a slow machine,
    // they also poll.
    let sections = usize::try_from(WAITERS).unwrap();
    let polls = 80 * usize::try_from(started.elapsed().as_secs()).unwrap();
    assert!(
        commands <= sections + sections / 10 + 1 + polls,
        "{commands}, {polls} polls"
    );
}

/// The script writes the counter before anything that it cannot undo, and the counter is broken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_with_a_broken_counter_keeps_the_queue() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    add_dead_waiters(&server, 3, "s", MINUTES);
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
        "the lock is free although the release failed"
    );
    assert_eq!(queue(), before, "the waiter keeps its place");
    server.cli(&["DEL", COUNTER]);
    let guard = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap();
    // The waiter's own poll finds the broken counter, or gets the lock after the repair.
    if let Ok(guard) = guard {
        guard.release().await.unwrap();
    }
}

/// A waiter gets a new entry each time its subscriber is cut. The client forgets entries that can
/// no longer be granted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_subscriber_cuts_do_not_lengthen_polls() {
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
    // Hash, count, five keys and eight arguments, and the entries of the last command timeout.
    assert!(longest <= 3 + 5 + 8 + 8, "{longest} words");
    assert_eq!(
        server.cli(&["ZCARD", QUEUE]).integer(),
        1,
        "the waiter has more than one entry"
    );
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

/// A release accepts any number of entries.
#[test]
fn release_accepts_ten_thousand_entries() {
    let server = RedisServer::start();
    add_dead_waiters(&server, 10_000, "s", MINUTES);
    let script = RELEASE.of(false).text(ScriptForm::Flagged);
    let mut words: Vec<String> = ["EVAL", script, "5", KEY, QUEUE, COUNTER]
        .map(ToOwned::to_owned)
        .into();
    words.extend(["{lock:job}:g", "{lock:job}:h"].map(ToOwned::to_owned));
    let id = "6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10";
    words.extend([id, "0", "0", "0", "0", "me", ""].map(ToOwned::to_owned));
    let all = server.cli(&["ZRANGE", QUEUE, "0", "-1"]);
    words.extend(all.array().iter().map(|entry| entry.text().to_owned()));
    let reply = server.cli(&words);
    assert!(reply.text().starts_with("gone "), "{reply:?}");
    assert_eq!(server.cli(&["EXISTS", QUEUE]).integer(), 0);
}

/// A waiter without notifications that dies is skipped after a few polls.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_polling_waiter_is_skipped_after_a_few_polls() {
    let timeout = ms(200);
    let server = RedisServer::start();
    server.cli(&[
        "ACL",
        "SETUSER",
        "channelless",
        "on",
        ">pass",
        "~*",
        "+@all",
    ]);
    let locks = connect(&server).await;
    let proxy = Proxy::in_front_of(&server);
    let url = format!("redis://channelless:pass@{}", proxy.address());
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
    // One poll in 100 ms, four polls and two replies.
    let left = expires_at - server_ms(&server);
    assert!(left > 0 && left <= 800 + 50, "{left}");
    proxy.black_hole();
    let silent = Instant::now();
    let behind = start_waiter(&server, locks.lock(NAME).ttl(LONG).wait(SOON), 2).await;
    tokio::time::sleep((ms(1_000)).saturating_sub(silent.elapsed())).await;
    held.release().await.unwrap();
    let guard = tokio::time::timeout(ms(400), behind).await;
    guard
        .expect("the dead waiter is skipped")
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
    dead.abort();
    proxy.forward();
}

/// A newer version may write other modes into the queue, and only that version handles them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_of_a_newer_version_keeps_its_place() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let mut newer = server.connect().unwrap();
    newer.call(&["SUBSCRIBE", "lk1:newer"]).unwrap();
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    let expires_at = server_ms(&server) + MINUTES;
    let entry =
        format!("6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 sz9 2000 {expires_at} lk1:newer web 1");
    server.cli(&["ZADD", QUEUE, "1", &entry]);
    let waiting = start_waiter(&server, locks.lock(NAME).ttl(LONG).wait(SOON), 2).await;
    held.release().await.unwrap();
    // The head-of-queue notification contains the first digits of the owner id, and comes at once.
    let message = newer.receive().unwrap();
    let words: Vec<_> = message.array()[2].text().split(' ').collect();
    assert_eq!((words[0], words[1], words[3]), ("h", "6f1c7f9e", "0"));
    assert_eq!(
        server.cli(&["EXISTS", KEY]).integer(),
        0,
        "the key is left free"
    );
    let none = locks.lock(NAME).try_acquire().await.unwrap();
    assert!(none.is_none(), "the waiter comes before an attempt");
    assert_eq!(server.cli(&["ZRANK", QUEUE, &entry]).integer(), 0);
    assert!(!waiting.is_finished());
    // When its subscriber is closed, the next waiter gets the lock.
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
async fn malformed_queue_entry_is_removed_when_the_key_is_free() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    for malformed in ["", "x", "a b c d e f", "\r\n", "6f1c7f9e s 1 2"] {
        server.cli(&["ZADD", QUEUE, "1", malformed]);
        let got = locks.lock(NAME).try_acquire().await.unwrap();
        got.expect("the queue has no waiter")
            .release()
            .await
            .unwrap();
        assert_eq!(server.cli(&["EXISTS", QUEUE]).integer(), 0);
    }
}

/// Returns the queue entries in their order, each as its owner id and its mode.
fn queue(server: &RedisServer) -> Vec<(String, String)> {
    let entries = server.cli(&["ZRANGE", QUEUE, "0", "-1"]);
    let words = |entry: &Reply| {
        let mut words = entry.text().split(' ').map(str::to_owned);
        (words.next().unwrap(), words.next().unwrap())
    };
    entries.array().iter().map(words).collect()
}

/// Returns how many managers get notifications.
fn subscribers(server: &RedisServer) -> usize {
    server.cli(&["PUBSUB", "CHANNELS"]).array().len()
}

/// A server, and two managers: one reaches it directly, and the other through a proxy.
struct Behind {
    server: RedisServer,
    proxy: Proxy,
    near: LockManager,
    far: LockManager,
}

impl Behind {
    async fn start() -> Self {
        let server = RedisServer::start();
        let proxy = Proxy::in_front_of(&server);
        let (near, far) = (connect(&server).await, connect_to(&proxy.url()).await);
        Self {
            server,
            proxy,
            near,
            far,
        }
    }
}

fn request(locks: &LockManager) -> LockRequest {
    locks.lock(NAME).ttl(LONG).wait(SOON)
}

/// Cuts the connections through the proxy, and waits until the server notices.
fn break_subscription(server: &RedisServer, proxy: &Proxy) {
    proxy.refuse();
    proxy.cut_all();
    eventually(SOON, || subscribers(server) == 1);
}

/// Releases the lock, and expects that `first` gets it before `second`.
async fn assert_order(held: LockGuard, first: Waiter, second: Waiter) {
    held.release().await.unwrap();
    let held = granted(SOON, first).await;
    assert!(!second.is_finished());
    held.release().await.unwrap();
    granted(SOON, second).await.release().await.unwrap();
}

/// A release can't tell a waiter whose subscription is broken from a dead one, so it removes both from the
/// queue. The live one comes back behind everyone who waits by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_without_a_subscription_at_a_release_rejoins_at_the_end() {
    let Behind {
        server,
        proxy,
        near,
        far,
    } = Behind::start().await;
    let held = request(&near).acquire().await.unwrap();
    let first = start_waiter(&server, request(&far), 1).await;
    let second = start_waiter(&server, request(&near), 2).await;
    let before = queue(&server);
    assert_eq!(subscribers(&server), 2);

    // The break alone costs nothing: the entry of the first waiter stays at the head.
    break_subscription(&server, &proxy);
    assert_eq!(queue(&server), before);

    // The release passes it over, and removes its entry.
    held.release().await.unwrap();
    let value = server.cli(&["GET", KEY]);
    assert!(value.text().contains(&before[1].0), "{value:?}");
    let held = granted(SOON, second).await;
    assert_eq!(queue(&server), []);

    // A third waiter enters before the first one comes back.
    let third = start_waiter(&server, request(&near), 1).await;
    proxy.forward();
    eventually(SOON, || queue(&server).len() == 2);
    assert_eq!(queue(&server)[1].0, before[0].0, "the same acquisition");
    held.release().await.unwrap();
    let held = granted(SOON, third).await;
    assert!(!first.is_finished());
    held.release().await.unwrap();
    granted(SOON, first).await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_that_subscribed_again_before_a_release_keeps_its_place() {
    let Behind {
        server,
        proxy,
        near,
        far,
    } = Behind::start().await;
    let held = request(&near).acquire().await.unwrap();
    let first = start_waiter(&server, request(&far), 1).await;
    let second = start_waiter(&server, request(&near), 2).await;

    break_subscription(&server, &proxy);
    proxy.forward();
    eventually(SOON, || subscribers(&server) == 2);
    assert_order(held, first, second).await;
}

/// A waiter that cannot subscribe again, but still reaches the server, polls. Its poll says so in its entry,
/// and no release needs its subscription from then on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_that_polled_since_its_subscription_broke_keeps_its_place() {
    let Behind {
        server,
        proxy,
        near,
        far,
    } = Behind::start().await;
    let held = request(&near).acquire().await.unwrap();
    let subscriber = proxy.accepted();
    let first = start_waiter(&server, request(&far), 1).await;
    assert_eq!(proxy.accepted(), subscriber + 1);
    let second = start_waiter(&server, request(&near), 2).await;
    let before = queue(&server);
    assert_eq!(before[0].1, "s");

    proxy.refuse();
    proxy.cut(subscriber);
    let polls = (before[0].0.clone(), "p".to_owned());
    eventually(SOON, || queue(&server)[0] == polls);
    assert_order(held, first, second).await;
}
