//! Waiting, tokens and names.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lock_core::error::{InvalidNameReason, InvalidSetting};
use lock_core::{LockError, LockManager, distributed_lock};
use test_support::fixtures::{AT_ONCE, COUNTER, KEY, LONG, NAME, NOTICE, QUEUE, SOON, keys, ms};
use test_support::{Direction, Proxy, RedisServer, eventually, eventually_async};
use tests::{
    assert_nothing_left, connect, connect_to, connect_with_timeout, fencing_token, granted,
    in_time, start_waiter,
};

use super::holder;

/// The longest interval between polls of the first waiter in the queue.
const CAP: Duration = Duration::from_secs(1);

/// The notification is lost in its connection.
#[tokio::test]
async fn f46_lost_notification_costs_one_poll() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let (first, second) = (connect(&server).await, connect_to(&proxy.url()).await);
    let held = first.lock(NAME).acquire().await.unwrap();
    let before = proxy.accepted();
    let waiting = start_waiter(&server, second.lock(NAME).wait(SOON), 1).await;
    assert_eq!(
        proxy.accepted(),
        before + 1,
        "the connection of the subscriber"
    );
    proxy.mute(before, Direction::ToClient);
    let released = Instant::now();
    held.release().await.unwrap();
    let next = granted(CAP + NOTICE, waiting).await;
    let took = released.elapsed();
    assert!(!next.is_lost(), "{took:?}");
    next.release().await.unwrap();

    // A release between the first attempt and the queue entry is not missed.
    for _ in 0..30 {
        let held = first.lock(NAME).acquire().await.unwrap();
        let waiting = tokio::spawn(first.lock(NAME).wait(SOON).acquire());
        tokio::task::yield_now().await;
        held.release().await.unwrap();
        granted(AT_ONCE, waiting).await.release().await.unwrap();
    }
    assert_nothing_left(&server, &second).await;
}

/// The server closes the connection of a subscriber that reads too slowly.
#[tokio::test]
async fn f48_disconnected_subscriber_returns_and_its_waiters_poll() {
    let server = RedisServer::start();
    let (first, second) = (connect(&server).await, connect(&server).await);
    let held = first.lock(NAME).acquire().await.unwrap();
    let waiting = start_waiter(&server, second.lock(NAME).wait(SOON), 1).await;
    let channels = || server.cli(&["PUBSUB", "CHANNELS"]);
    let channel = channels().array()[0].text().to_owned();
    let limit = "client-output-buffer-limit";
    server.cli(&["CONFIG", "SET", limit, "pubsub 1000 0 0"]);
    server.cli(&["PUBLISH", &channel, &"x".repeat(64 * 1024)]);
    eventually(SOON, || server.log().contains("output buffer limits"));
    // The waiter gets the lock at once, whether or not the subscriber is back.
    held.release().await.unwrap();
    let held = granted(AT_ONCE, waiting).await;
    let waiting = start_waiter(&server, second.lock(NAME).wait(SOON), 1).await;
    eventually_async(SOON, async || channels().array().len() == 1).await;
    held.release().await.unwrap();
    granted(AT_ONCE, waiting).await.release().await.unwrap();
    assert_nothing_left(&server, &second).await;
}

/// A release notifies the first waiter, and the other waiters keep their places.
#[tokio::test]
async fn f49_release_notifies_only_the_first_waiter() {
    const WAITERS: i64 = 30;
    let server = RedisServer::start();
    let managers = [connect(&server).await, connect(&server).await];
    let mut held = managers[0].lock(NAME).acquire().await.unwrap();
    let mut waiters = Vec::new();
    for (locks, number) in managers.iter().cycle().zip(1..=WAITERS) {
        waiters.push(start_waiter(&server, locks.lock(NAME).wait(SOON), number).await);
    }
    let started = Instant::now();
    let monitor = server.monitor();
    for waiting in waiters {
        held.release().await.unwrap();
        // If the lock went to another waiter, this one would keep waiting.
        held = granted(AT_ONCE, waiting).await;
    }
    held.release().await.unwrap();
    let took = started.elapsed();
    let commands = i64::try_from(monitor.stop().client_commands_about(NAME)).unwrap();
    // One release for each waiter, and the polls of the first few waiters in that time.
    let polls = WAITERS * i64::try_from(took.as_millis()).unwrap() / 750;
    assert!(
        commands <= WAITERS + 1 + polls,
        "{commands} commands in {took:?}"
    );
    assert_nothing_left(&server, &managers[0]).await;
}

/// The wait ends and the grant arrives in the same moment. The lock is held or free afterwards.
#[tokio::test]
async fn f50_grant_at_the_end_of_the_wait_is_used_or_handed_over() {
    let wait = ms(40);
    let server = RedisServer::start();
    let (first, second) = (connect(&server).await, connect(&server).await);
    // Subscribes before the waits are short.
    let held = first.lock(NAME).acquire().await.unwrap();
    let waiting = start_waiter(&server, second.lock(NAME).wait(SOON), 1).await;
    held.release().await.unwrap();
    granted(AT_ONCE, waiting).await.release().await.unwrap();
    for trial in 0..16 {
        let held = first.lock(NAME).ttl(LONG).acquire().await.unwrap();
        let started = Instant::now();
        let waiting = tokio::spawn(second.lock(NAME).ttl(LONG).wait(wait).acquire());
        let release_at = started + wait - ms(4) + Duration::from_micros(500) * trial;
        tokio::time::sleep_until(release_at.into()).await;
        held.release().await.unwrap();
        match waiting.await.unwrap() {
            Ok(granted) => granted.release().await.unwrap(),
            Err(error) => assert!(error.is_contended(), "{error}"),
        }
        let next = first.lock(NAME).wait(AT_ONCE).acquire().await;
        next.expect("the lock is free").release().await.unwrap();
    }
    assert_nothing_left(&server, &second).await;
}

/// The last poll gets no reply in the remaining time. That is no error of the server, and the lock
/// counts as busy, as it was at the poll before.
#[tokio::test]
async fn f50_wait_that_ends_during_a_poll_times_out_as_contended() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_to(&proxy.url()).await;
    // A lock of another library, so that the first waiter polls every 50 ms.
    server.cli(&["SET", KEY, "another", "PX", "60000"]);
    let wait = ms(700);
    let outcome = locks.lock(NAME).wait(wait).acquire().await;
    assert!(outcome.unwrap_err().is_contended());
    proxy.delay_round_trip(ms(200));
    for wait in [ms(1_300), ms(1_360)] {
        let outcome = in_time(wait, locks.lock(NAME).wait(wait).acquire()).await;
        let error = outcome.unwrap_err();
        assert!(matches!(error, LockError::Timeout { .. }), "{error}");
        assert_eq!(
            &*error.holder().expect("the error names the holder").label,
            "a client of another library"
        );
    }
    proxy.forward();
    server.cli(&["DEL", KEY]);
    assert_nothing_left(&server, &locks).await;
}

/// A dead waiter costs nothing. A frozen waiter costs one handover lease, and the waiters behind it
/// learn when it ends. A polling waiter is not skipped.
#[tokio::test]
async fn f50_unresponsive_waiters_cost_at_most_one_handover_lease() {
    let handover_lease = ms(600);
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
    let polling_locks = connect_to(&format!("redis://channelless:pass@{}", server.address())).await;
    let enter_queue = async |number: i64| {
        // The handover lease is at most the ttl.
        let process = holder(&server.url(), handover_lease, LONG).spawn();
        eventually_async(SOON, async || {
            server.cli(&["ZCARD", QUEUE]).integer() == number
        })
        .await;
        process
    };
    let held = locks.lock(NAME).acquire().await.unwrap();
    let dead = enter_queue(1).await;
    let frozen = enter_queue(2).await;
    let polling = start_waiter(&server, polling_locks.lock(NAME).wait(SOON), 3).await;
    let notified = start_waiter(&server, locks.lock(NAME).wait(SOON), 4).await;
    dead.kill9();
    frozen.stop();
    eventually_async(SOON, async || {
        server.cli(&["PUBSUB", "CHANNELS"]).array().len() == 2
    })
    .await;
    held.release().await.unwrap();
    // It polls every half second, and shares the queue with a waiter that has notifications.
    let held = granted(handover_lease + ms(500) + NOTICE, polling).await;
    assert!(!notified.is_finished());
    // The user of this release may not publish, so the next waiter has to poll.
    held.release().await.unwrap();
    let held = granted(CAP + NOTICE, notified).await;
    // The frozen process continues, learns that its grant expired, and waits at the end of the
    // queue.
    frozen.cont();
    eventually_async(SOON, async || server.cli(&["ZCARD", QUEUE]).integer() == 1).await;
    assert_eq!(frozen.lines(), Vec::<String>::new());
    held.release().await.unwrap();
    frozen.record(AT_ONCE, |record| record.get("held").is_some());
}

/// Lua counts in doubles, where 2^53 plus 1 is 2^53.
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
        assert_eq!(fencing_token(&held), expected, "granted by a notification");
    }
    let number = fencing_token(&held).to_string();
    let value = server.cli(&["GET", KEY]);
    assert_eq!(value.text().split(' ').nth(1), Some(number.as_str()));
    assert_eq!(server.cli(&["GET", COUNTER]).text(), number);
    held.release().await.unwrap();
}

#[distributed_lock(name = "{a}:{b}", manager = locks)]
async fn name_of_two_values(
    locks: &LockManager,
    server: &RedisServer,
    a: &str,
    b: &str,
) -> Result<Vec<String>, LockError> {
    let _ = (a, b);
    Ok(keys(server))
}

/// Redis accepts any bytes as a key. A name is short text, and two lists of values never give one
/// name.
#[tokio::test]
async fn f52_names_are_limited_text_and_values_do_not_run_together() {
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
        let LockError::Invalid(InvalidSetting::Name { reason, .. }) = error else {
            panic!("{error}");
        };
        assert_eq!(reason, expected);
    }
    assert_eq!(monitor.stop().from_clients().count(), 0);
    // Any text is allowed, whatever a shell or a terminal makes of it.
    for name in ["\0\u{1}\r\n", "ключ", "a b\"'\\", &"x".repeat(1024)] {
        let held = locks.lock(name).acquire().await.unwrap();
        assert_eq!(keys(&server), [format!("lock:{name}")]);
        held.release().await.unwrap();
    }
    let first = name_of_two_values(&locks, &server, "a:b", "c")
        .await
        .unwrap();
    let second = name_of_two_values(&locks, &server, "a", "b:c")
        .await
        .unwrap();
    assert_ne!(first, second);
    assert_nothing_left(&server, &locks).await;
}

#[distributed_lock(name = "job", wait = "100ms", manager = locks)]
async fn guarded(locks: &LockManager, runs: &AtomicUsize) -> Result<(), LockError> {
    runs.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

/// A server that is down makes a lock neither free nor held: no body runs, and no error reports a
/// holder.
#[tokio::test]
async fn f53_no_body_runs_while_the_server_is_down() {
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
        ("killed", &|| server.kill9()),
    ];
    for (fault, provoke) in faults {
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
                "{fault}: {outcome:?}"
            );
        }
        assert_eq!(runs.load(Ordering::Acquire), 0, "{fault}");
    }
}
