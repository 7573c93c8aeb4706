//! Time: of the network, of the server's clock, and of machines and processes that stand still.

use std::time::{Duration, Instant, SystemTime};

use lock_core::{LockError, Renew};
use serde_json::Value;
use test_support::fixtures::{AT_ONCE, KEY, LONG, NAME, NOTICE, SOON, exists, ms, time_to_expiry};
use test_support::process::Process;
use test_support::{
    Direction, FrozenClock, Proxy, RedisServer, SuspendedMachine, eventually_async,
};
use tests::{
    assert_nothing_left, connect, connect_to, fencing_token, granted, in_time, lost_in_time,
    start_waiter,
};

use super::holder;

/// A reply is old when it comes; neither a grant nor a renewal nor a push is counted from then.
#[tokio::test]
async fn f30_a_lease_counts_from_its_command_and_not_from_its_reply() {
    let late = ms(300);
    let ttl = ms(2_000);
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_to(&proxy.url()).await;
    let request = locks.lock(NAME).ttl(ttl).renew(Renew::Never);
    // Both clients have their connections before the replies are slow.
    let held = request.clone().acquire().await.unwrap();
    let waiting = start_waiter(&server, request.clone().wait(SOON), 1).await;
    proxy.delay(Direction::ToClient, late);
    held.renew().await.unwrap();
    let theirs = time_to_expiry(&server, KEY);
    assert!(held.remaining() <= theirs.min(ttl - late));
    held.release().await.unwrap();

    let held = granted(SOON, waiting).await;
    let theirs = time_to_expiry(&server, KEY);
    assert!(held.remaining() <= theirs.min(ttl - late));
    held.release().await.unwrap();

    let held = request.acquire().await.unwrap();
    let theirs = time_to_expiry(&server, KEY);
    assert!(held.remaining() <= theirs.min(ttl - late));
    held.release().await.unwrap();
    proxy.forward();
    assert_nothing_left(&server, &locks).await;
}

fn running_clock() -> FrozenClock {
    let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_micros();
    let clock = FrozenClock::at(u64::try_from(now).unwrap());
    clock.run_ahead_by(0);
    clock
}

/// Forward it gives a held lock away, which only the token can mend; backward it keeps one that is
/// over, and each waiter gets its answer in time.
#[tokio::test]
async fn f31_a_jump_of_the_server_s_clock_is_told_and_fenced() {
    const SECOND: i64 = 1_000_000;
    let clock = running_clock();
    let server = RedisServer::options().clock(&clock).start();
    let (ours, theirs) = (connect(&server).await, connect(&server).await);
    let held = ours.lock(NAME).ttl(ms(3_000)).acquire().await.unwrap();
    clock.run_ahead_by(20 * SECOND);
    let other = theirs.lock(NAME).try_acquire().await.unwrap();
    let other = other.expect("the server has let the lock go");
    assert!(fencing_token(&other) > fencing_token(&held));
    lost_in_time(&held).await;
    assert!(!other.is_lost());
    let last = fencing_token(&other);
    other.release().await.unwrap();
    drop(held);

    let request = ours.lock(NAME).ttl(ms(400)).renew(Renew::Never);
    let held = request.acquire().await.unwrap();
    assert!(fencing_token(&held) > last);
    clock.run_ahead_by(-120 * SECOND);
    lost_in_time(&held).await;
    assert!(
        time_to_expiry(&server, KEY) > LONG,
        "it is over there as well"
    );
    let wait = ms(300);
    let outcome = in_time(wait, theirs.lock(NAME).wait(wait).acquire()).await;
    assert!(matches!(outcome, Err(LockError::Timeout { .. })));
    // Whoever had it can still give it back.
    let last = fencing_token(&held);
    drop(held);
    let next = theirs.lock(NAME).wait(AT_ONCE).acquire().await.unwrap();
    assert!(
        fencing_token(&next) > last,
        "{} after {last}",
        fencing_token(&next)
    );
    next.release().await.unwrap();
    assert_nothing_left(&server, &ours).await;
}

fn token_of(process: &Process) -> u64 {
    let held = process.record(SOON, |record| record.get("held").is_some());
    held["held"].as_u64().unwrap()
}

/// What it believes now, as its next answer.
fn ask(process: &Process) -> bool {
    let answers = |process: &Process| {
        let is_answer = |record: &Value| record.get("lost").is_some();
        process.records().into_iter().filter(is_answer).count()
    };
    let before = answers(process);
    process.send_line("?");
    let mut seen = 0;
    let answer = process.record(SOON, |record| {
        seen += usize::from(record.get("lost").is_some());
        seen > before
    });
    answer["lost"].as_bool().unwrap()
}

fn is_told(process: &Process) -> bool {
    process
        .records()
        .iter()
        .any(|r| r.get("notified").is_some())
}

/// The server's time went on while the machine was suspended, and `Instant` did not. No reply can
/// tell of it here: only the process's own clock.
#[test]
fn f32_a_suspended_machine_wakes_up_without_the_lock() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let machine = SuspendedMachine::new();
    let process = machine.run(holder(&proxy.url(), LONG, Duration::ZERO));
    let process = process.spawn();
    token_of(&process);
    assert!(!ask(&process));
    proxy.black_hole();
    machine.suspend_for(30);
    assert!(!ask(&process) && !is_told(&process), "half of the ttl");
    let woken = Instant::now();
    machine.suspend_for(90);
    assert!(ask(&process), "it believes in a lease that is over");
    process.record(SOON, |record| record.get("notified").is_some());
    let took = woken.elapsed();
    assert!(took <= NOTICE * 2, "{took:?}");
}

/// The first thing that a process which stood still learns when it looks. What it writes without
/// looking is for the resource to refuse, which has seen a higher token.
#[tokio::test]
async fn f33_a_paused_process_finds_its_lock_lost_when_it_looks() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let process = holder(&server.url(), ms(500), Duration::ZERO).spawn();
    let stale = token_of(&process);
    assert!(!ask(&process));
    process.stop();
    let next = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
    process.cont();
    assert!(ask(&process), "it believes in a lease that is over");
    process.record(SOON, |record| record.get("notified").is_some());
    assert!(
        fencing_token(&next) > stale,
        "a resource could not tell them apart"
    );
    next.renew().await.expect("the paused one took it back");
    next.release().await.unwrap();
    assert_nothing_left(&server, &locks).await;
}

/// Redis takes zero for "delete" and numbers for lifetimes that it cannot mean.
#[tokio::test]
async fn f35_no_ttl_is_sent_that_the_server_would_misread() {
    const DAY: Duration = Duration::from_secs(24 * 60 * 60);
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let monitor = server.monitor();
    for ttl in [
        Duration::ZERO,
        Duration::from_nanos(99_999_999),
        DAY + Duration::from_nanos(1),
        Duration::from_millis(i64::MAX.unsigned_abs()),
        Duration::MAX,
    ] {
        for request in [locks.lock(NAME), locks.lock(NAME).wait(SOON)] {
            let error = request.ttl(ttl).acquire().await.unwrap_err();
            assert!(matches!(error, LockError::InvalidTtl { .. }), "{error}");
        }
    }
    assert_eq!(monitor.stop().from_clients().count(), 0);

    let held = locks.lock(NAME).ttl(DAY).acquire().await.unwrap();
    assert!(time_to_expiry(&server, KEY) > DAY - LONG);
    held.release().await.unwrap();
    let monitor = server.monitor();
    // A part of a millisecond is one more and not one less; and the last renewals before the end
    // of the longest hold have next to nothing left to ask for.
    let request = locks.lock(NAME).ttl(Duration::from_nanos(100_000_001));
    let request = request.renew(Renew::Every(ms(10)));
    let held = request.max_hold(ms(300)).acquire().await.unwrap();
    lost_in_time(&held).await;
    eventually_async(AT_ONCE, async || !exists(&server, KEY)).await;
    let recording = monitor.stop();
    let mut lives = Vec::new();
    for command in recording.all().iter().filter(|c| c.is_from_script()) {
        match command.name().as_str() {
            "SET" if command.words[1] == KEY => lives.push(command.words[4].clone()),
            "PEXPIRE" => lives.push(command.words[2].clone()),
            _ => {}
        }
    }
    let lives: Vec<i64> = lives.iter().map(|life| life.parse().unwrap()).collect();
    assert_eq!(lives[0], 101);
    assert!(lives.len() > 3, "{lives:?}");
    assert!(
        lives.iter().all(|life| (1..=101).contains(life)),
        "{lives:?}"
    );
    drop(held);
    assert_nothing_left(&server, &locks).await;
}
