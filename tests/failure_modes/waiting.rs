//! Waiting, tokens and keys.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lock_core::{InvalidNameReason, LockError, LockManager, distributed_lock};
use test_support::fixtures::{AT_ONCE, COUNTER, KEY, LONG, NAME, NOTICE, QUEUE, SOON, keys, ms};
use test_support::{Direction, Proxy, RedisServer, eventually, eventually_async};
use tests::{
    assert_nothing_left, connect, connect_to, connect_with_timeout, fencing_token, granted,
    in_time, start_waiter,
};

use super::holder;

/// The latest that the first in the queue looks by itself.
const CAP: Duration = Duration::from_secs(1);

/// The push goes into a connection that swallows it.
#[tokio::test]
async fn f46_a_lost_push_costs_one_look() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let (ours, theirs) = (connect(&server).await, connect_to(&proxy.url()).await);
    let held = ours.lock(NAME).acquire().await.unwrap();
    let before = proxy.accepted();
    let waiting = start_waiter(&server, theirs.lock(NAME).wait(SOON), 1).await;
    assert_eq!(proxy.accepted(), before + 1, "the push connection");
    proxy.mute(before, Direction::ToClient);
    let released = Instant::now();
    held.release().await.unwrap();
    let next = granted(CAP + NOTICE, waiting).await;
    let took = released.elapsed();
    assert!(!next.is_lost(), "{took:?}");
    next.release().await.unwrap();

    // Released between the first look and the place in the queue: there is nothing in between.
    for _ in 0..30 {
        let held = ours.lock(NAME).acquire().await.unwrap();
        let waiting = tokio::spawn(ours.lock(NAME).wait(SOON).acquire());
        tokio::task::yield_now().await;
        held.release().await.unwrap();
        granted(AT_ONCE, waiting).await.release().await.unwrap();
    }
    assert_nothing_left(&server, &theirs).await;
}

/// The server hangs up on a subscriber that does not keep up.
#[tokio::test]
async fn f48_a_subscriber_that_was_hung_up_on_comes_back_and_looks() {
    let server = RedisServer::start();
    let (ours, theirs) = (connect(&server).await, connect(&server).await);
    let held = ours.lock(NAME).acquire().await.unwrap();
    let waiting = start_waiter(&server, theirs.lock(NAME).wait(SOON), 1).await;
    let channels = || server.cli(&["PUBSUB", "CHANNELS"]);
    let channel = channels().array()[0].text().to_owned();
    let limit = "client-output-buffer-limit";
    server.cli(&["CONFIG", "SET", limit, "pubsub 1000 0 0"]);
    server.cli(&["PUBLISH", &channel, &"x".repeat(64 * 1024)]);
    eventually(SOON, || server.log().contains("output buffer limits"));
    // At once, whether or not it is back.
    held.release().await.unwrap();
    let held = granted(AT_ONCE, waiting).await;
    let waiting = start_waiter(&server, theirs.lock(NAME).wait(SOON), 1).await;
    eventually_async(SOON, async || channels().array().len() == 1).await;
    held.release().await.unwrap();
    granted(AT_ONCE, waiting).await.release().await.unwrap();
    assert_nothing_left(&server, &theirs).await;
}

/// One waiter is notified, the first one, and the others keep their places.
#[tokio::test]
async fn f49_a_release_wakes_one_and_the_first() {
    const LINE: i64 = 30;
    let server = RedisServer::start();
    let managers = [connect(&server).await, connect(&server).await];
    let mut held = managers[0].lock(NAME).acquire().await.unwrap();
    let mut line = Vec::new();
    for (locks, number) in managers.iter().cycle().zip(1..=LINE) {
        line.push(start_waiter(&server, locks.lock(NAME).wait(SOON), number).await);
    }
    let started = Instant::now();
    let monitor = server.monitor();
    for waiting in line {
        held.release().await.unwrap();
        // Had another one got it, this one would wait on.
        held = granted(AT_ONCE, waiting).await;
    }
    held.release().await.unwrap();
    let took = started.elapsed();
    let commands = i64::try_from(monitor.stop().client_commands_about(NAME)).unwrap();
    // One release each, and what the first few look at by themselves in that time.
    let looks = LINE * i64::try_from(took.as_millis()).unwrap() / 750;
    assert!(
        commands <= LINE + 1 + looks,
        "{commands} commands in {took:?}"
    );
    assert_nothing_left(&server, &managers[0]).await;
}

/// When the wait ends and the lock comes in the same moment, one of them wins: the lock is held or free.
#[tokio::test]
async fn f50_a_grant_at_the_end_of_the_wait_is_taken_or_handed_on() {
    let wait = ms(40);
    let server = RedisServer::start();
    let (ours, theirs) = (connect(&server).await, connect(&server).await);
    // Subscribed before the times are short.
    let held = ours.lock(NAME).acquire().await.unwrap();
    let waiting = start_waiter(&server, theirs.lock(NAME).wait(SOON), 1).await;
    held.release().await.unwrap();
    granted(AT_ONCE, waiting).await.release().await.unwrap();
    for trial in 0..16 {
        let held = ours.lock(NAME).ttl(LONG).acquire().await.unwrap();
        let asked = Instant::now();
        let waiting = tokio::spawn(theirs.lock(NAME).ttl(LONG).wait(wait).acquire());
        let release_at = asked + wait - ms(4) + Duration::from_micros(500) * trial;
        tokio::time::sleep_until(release_at.into()).await;
        held.release().await.unwrap();
        match waiting.await.unwrap() {
            Ok(granted) => granted.release().await.unwrap(),
            Err(error) => assert!(error.is_contended(), "{error}"),
        }
        let next = ours.lock(NAME).wait(AT_ONCE).acquire().await;
        next.expect("it is free").release().await.unwrap();
    }
    assert_nothing_left(&server, &theirs).await;
}

/// The last look gets no answer in the time that is left. That says nothing about the server, and
/// the lock is what it was at the look before: busy.
#[tokio::test]
async fn f50_a_wait_that_ends_during_a_look_found_the_lock_busy() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_to(&proxy.url()).await;
    // Of another library, so that whoever is first looks every 50 ms.
    server.cli(&["SET", KEY, "another", "PX", "60000"]);
    let wait = ms(50);
    let outcome = locks.lock(NAME).wait(wait).acquire().await;
    assert!(outcome.unwrap_err().is_contended());
    proxy.delay_round_trip(ms(200));
    for wait in [ms(300), ms(360)] {
        let outcome = in_time(wait, locks.lock(NAME).wait(wait).acquire()).await;
        let error = outcome.unwrap_err();
        assert!(matches!(error, LockError::Timeout { .. }), "{error}");
        assert_eq!(error.holder().expect("it was seen").label(), "another");
    }
    proxy.forward();
    server.cli(&["DEL", KEY]);
    assert_nothing_left(&server, &locks).await;
}

/// One who is dead costs nothing, one who is frozen costs a claim and everybody behind knows, and
/// one who has to ask is not passed over.
#[tokio::test]
async fn f50_waiters_who_do_not_answer_cost_a_claim_at_most() {
    let claim = ms(600);
    let server = RedisServer::start();
    server.cli(&["ACL", "SETUSER", "unheard", "on", ">pass", "~*", "+@all"]);
    let locks = connect(&server).await;
    let asks = connect_to(&format!("redis://unheard:pass@{}", server.address())).await;
    let wait_in_line = async |number: i64| {
        // The claim is at most the ttl.
        let process = holder(&server.url(), claim, LONG).spawn();
        eventually_async(SOON, async || {
            server.cli(&["ZCARD", QUEUE]).integer() == number
        })
        .await;
        process
    };
    let held = locks.lock(NAME).acquire().await.unwrap();
    let dead = wait_in_line(1).await;
    let frozen = wait_in_line(2).await;
    let polling = start_waiter(&server, asks.lock(NAME).wait(SOON), 3).await;
    let notified = start_waiter(&server, locks.lock(NAME).wait(SOON), 4).await;
    dead.kill9();
    frozen.stop();
    eventually_async(SOON, async || {
        server.cli(&["PUBSUB", "CHANNELS"]).array().len() == 2
    })
    .await;
    held.release().await.unwrap();
    // It polls every half second, and shares the queue with a waiter that has notifications.
    let held = granted(claim + ms(500) + NOTICE, polling).await;
    assert!(!notified.is_finished());
    // Released by a user that may not publish: the next waiter polls.
    held.release().await.unwrap();
    let held = granted(CAP + NOTICE, notified).await;
    // Awake again, it knows that its grant is over, and stands behind.
    frozen.cont();
    eventually_async(SOON, async || server.cli(&["ZCARD", QUEUE]).integer() == 1).await;
    assert_eq!(frozen.lines(), Vec::<String>::new());
    held.release().await.unwrap();
    frozen.record(AT_ONCE, |record| record.get("held").is_some());
}

/// Lua counts in doubles, where the next number after 2^53 is 2^53 again.
#[tokio::test]
async fn f51_tokens_above_2_to_the_53_are_exact() {
    const EDGE: u64 = 1 << 53;
    let server = RedisServer::start();
    let locks = connect(&server).await;
    server.cli(&["SET", COUNTER, &(EDGE - 2).to_string()]);
    for expected in [EDGE - 1, EDGE, EDGE + 1] {
        let held = locks.lock(NAME).acquire().await.unwrap();
        assert_eq!(fencing_token(&held), expected);
        held.renew().await.unwrap();
        held.release().await.unwrap();
    }
    let mut held = locks.lock(NAME).acquire().await.unwrap();
    for expected in EDGE + 3..EDGE + 6 {
        let waiting = start_waiter(&server, locks.lock(NAME).wait(SOON), 1).await;
        held.release().await.unwrap();
        held = granted(AT_ONCE, waiting).await;
        assert_eq!(fencing_token(&held), expected, "by a push");
    }
    let number = fencing_token(&held).to_string();
    let value = server.cli(&["GET", KEY]);
    assert_eq!(value.text().split(' ').nth(1), Some(number.as_str()));
    assert_eq!(server.cli(&["GET", COUNTER]).text(), number);
    held.release().await.unwrap();
}

#[distributed_lock(name = "{a}:{b}", manager = locks)]
async fn of_two(
    locks: &LockManager,
    server: &RedisServer,
    a: &str,
    b: &str,
) -> Result<Vec<String>, LockError> {
    let _ = (a, b);
    Ok(keys(server))
}

/// Redis takes any bytes for a key. Here a name is short text, and two values never make one name.
#[tokio::test]
async fn f52_names_are_short_text_and_values_do_not_run_together() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let monitor = server.monitor();
    let long = "x".repeat(1025);
    let huge = "x".repeat(8 << 20);
    for (name, expected) in [
        ("", InvalidNameReason::Empty),
        (&long, InvalidNameReason::TooLong),
        (&huge, InvalidNameReason::TooLong),
        ("{a}{b}", InvalidNameReason::Braces),
        ("{a}:q", InvalidNameReason::Companion),
    ] {
        let error = locks.lock(name).wait(SOON).acquire().await.unwrap_err();
        let LockError::InvalidName { reason, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(reason, expected);
    }
    assert_eq!(monitor.stop().from_clients().count(), 0);
    // Text is whatever it looks like to a shell or a terminal.
    for name in ["\0\u{1}\r\n", "ключ", "a b\"'\\", &"x".repeat(1024)] {
        let held = locks.lock(name).acquire().await.unwrap();
        assert_eq!(keys(&server), [format!("lock:{name}")]);
        held.release().await.unwrap();
    }
    let first = of_two(&locks, &server, "a:b", "c").await.unwrap();
    let second = of_two(&locks, &server, "a", "b:c").await.unwrap();
    assert_ne!(first, second);
    assert_nothing_left(&server, &locks).await;
}

#[distributed_lock(name = "job", wait = "100ms", manager = locks)]
async fn guarded(locks: &LockManager, runs: &AtomicUsize) -> Result<(), LockError> {
    runs.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

/// Down is neither free nor held: nothing runs, and no error says that there is another holder.
#[tokio::test]
async fn f53_no_body_runs_because_the_server_is_down() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_with_timeout(&proxy.url(), ms(150)).await;
    let runs = AtomicUsize::new(0);
    let faults: [(&str, &dyn Fn()); 4] = [
        ("refused", &|| {
            proxy.refuse();
            proxy.cut_all();
        }),
        ("silent", &|| proxy.black_hole()),
        ("without memory", &|| {
            proxy.forward();
            server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
        }),
        ("gone", &|| server.kill9()),
    ];
    for (what, provoke) in faults {
        provoke();
        let body = async |_: &_| runs.fetch_add(1, Ordering::AcqRel);
        let request = locks.lock(NAME).ttl(ms(500));
        let outcomes = [
            request.clone().run(body).await.map(|_| ()),
            request.clone().wait(ms(100)).run(body).await.map(|_| ()),
            request.clone().try_acquire().await.map(|_| ()),
            request.wait(ms(100)).acquire().await.map(|_| ()),
            guarded(&locks, &runs).await,
        ];
        for outcome in outcomes {
            assert!(
                matches!(outcome, Err(LockError::Backend(_))),
                "{what}: {outcome:?}"
            );
        }
        assert_eq!(runs.load(Ordering::Acquire), 0, "{what}");
    }
}
