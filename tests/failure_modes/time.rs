//! Time: delays of the network, jumps of the server's clock, and suspended machines and processes.

use std::time::{Duration, SystemTime};

use lock_core::error::InvalidSetting;
use lock_core::{LockError, Renew};
use serde_json::Value;
use test_support::fixtures::{AT_ONCE, KEY, LONG, NAME, NOTICE, SOON, exists, ms, time_to_expiry};
use test_support::process::Process;
use test_support::{
    Direction, FrozenClock, Proxy, RedisServer, Stopwatch, SuspendedMachine, eventually_async,
};
use tests::{
    assert_nothing_left, connect, connect_to, fencing_token, granted, in_time, lost_in_time,
    start_waiter,
};

use super::holder;

/// A reply arrives late. The lease of a grant, a renewal or a notification does not count from its
/// arrival.
#[tokio::test]
async fn f30_lease_counts_from_the_send_time_of_its_command() {
    let late = ms(300);
    let ttl = ms(2_000);
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_to(&proxy.url()).await;
    let request = locks.lock(NAME).ttl(ttl).renew(Renew::Never);
    // Both clients have their connections before the replies are delayed.
    let held = request.clone().acquire().await.unwrap();
    let waiting = start_waiter(&server, request.clone().wait(SOON), 1).await;
    proxy.delay(Direction::ToClient, late);
    held.renew().await.unwrap();
    let at_server = time_to_expiry(&server, KEY);
    assert!(held.remaining() <= at_server.min(ttl - late));
    held.release().await.unwrap();

    let held = granted(SOON, waiting).await;
    let at_server = time_to_expiry(&server, KEY);
    assert!(held.remaining() <= at_server.min(ttl - late));
    held.release().await.unwrap();

    let held = request.acquire().await.unwrap();
    let at_server = time_to_expiry(&server, KEY);
    assert!(held.remaining() <= at_server.min(ttl - late));
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

/// A jump forward ends the lease of a held lock, and only the token protects the resource. A jump
/// backward keeps a lock that is over for its holder, and waits still end in time.
#[tokio::test]
async fn f31_server_clock_jump_reports_the_loss_and_tokens_grow() {
    const SECOND: i64 = 1_000_000;
    let clock = running_clock();
    let server = RedisServer::options().clock(&clock).start();
    let (first, second) = (connect(&server).await, connect(&server).await);
    let held = first.lock(NAME).ttl(ms(3_000)).acquire().await.unwrap();
    clock.run_ahead_by(20 * SECOND);
    let other = second.lock(NAME).try_acquire().await.unwrap();
    let other = other.expect("the lease ended at the server");
    assert!(fencing_token(&other) > fencing_token(&held));
    lost_in_time(&held).await;
    assert!(!other.is_lost());
    let last = fencing_token(&other);
    other.release().await.unwrap();
    drop(held);

    let request = first.lock(NAME).ttl(ms(400)).renew(Renew::Never);
    let held = request.acquire().await.unwrap();
    assert!(fencing_token(&held) > last);
    clock.run_ahead_by(-120 * SECOND);
    lost_in_time(&held).await;
    assert!(
        time_to_expiry(&server, KEY) > LONG,
        "the lease is over at the server too"
    );
    let wait = ms(300);
    let outcome = in_time(wait, second.lock(NAME).wait(wait).acquire()).await;
    assert!(matches!(outcome, Err(LockError::Timeout { .. })));
    // The holder can still release the lock.
    let last = fencing_token(&held);
    drop(held);
    let next = second.lock(NAME).wait(AT_ONCE).acquire().await.unwrap();
    assert!(
        fencing_token(&next) > last,
        "{} after {last}",
        fencing_token(&next)
    );
    next.release().await.unwrap();
    assert_nothing_left(&server, &first).await;
}

fn token_of(process: &Process) -> u64 {
    let held = process.record(SOON, |record| record.get("held").is_some());
    held["held"].as_u64().unwrap()
}

/// Asks the process whether its lock is lost.
fn is_lost(process: &Process) -> bool {
    let replies = |process: &Process| {
        let is_reply = |record: &Value| record.get("lost").is_some();
        process.records().into_iter().filter(is_reply).count()
    };
    let before = replies(process);
    process.send_line("?");
    let mut seen = 0;
    let reply = process.record(SOON, |record| {
        seen += usize::from(record.get("lost").is_some());
        seen > before
    });
    reply["lost"].as_bool().unwrap()
}

fn is_notified(process: &Process) -> bool {
    process
        .records()
        .iter()
        .any(|r| r.get("notified").is_some())
}

/// The server's time continued while the machine was suspended, and `Instant` did not. No reply
/// reaches the process, so it has only its own clock.
#[test]
fn f32_suspended_machine_wakes_up_without_the_lock() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let machine = SuspendedMachine::new();
    let process = machine.run(holder(&proxy.url(), LONG, Duration::ZERO));
    let process = process.spawn();
    token_of(&process);
    assert!(!is_lost(&process));
    proxy.black_hole();
    machine.suspend_for(30);
    assert!(
        !is_lost(&process) && !is_notified(&process),
        "the ttl is only half over"
    );
    let woken = Stopwatch::start();
    machine.suspend_for(90);
    assert!(
        is_lost(&process),
        "the process reports a held lock after its lease"
    );
    process.record(SOON, |record| record.get("notified").is_some());
    let took = woken.elapsed();
    assert!(took <= NOTICE * 2 + woken.stalled(), "{took:?}");
}

/// The first check after the pause reports the loss. Only the resource can refuse a write without a
/// check, because it has seen a greater token.
#[tokio::test]
async fn f33_paused_process_finds_its_lock_lost_at_the_first_check() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let process = holder(&server.url(), ms(500), Duration::ZERO).spawn();
    let stale = token_of(&process);
    assert!(!is_lost(&process));
    process.stop();
    let next = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
    process.cont();
    assert!(
        is_lost(&process),
        "the process reports a held lock after its lease"
    );
    process.record(SOON, |record| record.get("notified").is_some());
    assert!(
        fencing_token(&next) > stale,
        "the resource cannot refuse the stale token"
    );
    next.renew()
        .await
        .expect("the paused holder disturbed the next one");
    next.release().await.unwrap();
    assert_nothing_left(&server, &locks).await;
}

/// Redis reads zero as "delete", and accepts lifetimes that overflow.
#[tokio::test]
async fn f35_ttl_that_the_server_would_misread_is_never_sent() {
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
            assert!(
                matches!(error, LockError::Invalid(InvalidSetting::Ttl { .. })),
                "{error}"
            );
        }
    }
    assert_eq!(monitor.stop().from_clients().count(), 0);

    let held = locks.lock(NAME).ttl(DAY).acquire().await.unwrap();
    assert!(time_to_expiry(&server, KEY) > DAY - LONG);
    held.release().await.unwrap();
    let monitor = server.monitor();
    // Parts of a millisecond round up. The last renewals before the end of `max_hold` extend the
    // lease by next to nothing.
    let request = locks.lock(NAME).ttl(Duration::from_nanos(600_000_001));
    let request = request.renew(Renew::Every(ms(10)));
    let held = request.max_hold(ms(900)).acquire().await.unwrap();
    lost_in_time(&held).await;
    eventually_async(AT_ONCE, async || !exists(&server, KEY)).await;
    let recording = monitor.stop();
    let mut ttls = Vec::new();
    for command in recording.all().iter().filter(|c| c.is_from_script()) {
        match command.name().as_str() {
            "SET" if command.words[1] == KEY => ttls.push(command.words[4].clone()),
            "PEXPIRE" => ttls.push(command.words[2].clone()),
            _ => {}
        }
    }
    let ttls: Vec<i64> = ttls.iter().map(|ttl| ttl.parse().unwrap()).collect();
    assert_eq!(ttls[0], 601);
    assert!(ttls.len() > 3, "{ttls:?}");
    assert!(ttls.iter().all(|ttl| (1..=601).contains(ttl)), "{ttls:?}");
    drop(held);
    assert_nothing_left(&server, &locks).await;
}
