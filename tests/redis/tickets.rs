//! Tickets on a server: lost replies, late commands, outages, and what a manager reports.

use std::pin::Pin;
use std::time::Duration;

use lock_core::error::{BackendErrorKind, InvalidSetting, InvalidTicketReason};
use lock_core::{LockError, LockGuard, LockManager, LockTicket, LossReason, Renew};
use test_support::fixtures::{AT_ONCE, KEY, LONG, NAME, SOON, ms, time_to_expiry};
use test_support::{Direction, Lost, Proxy, RedisServer, completes_within, cut, eventually_async};
use tests::{assert_nothing_left, backend_error_kind, in_time, shut_down};

use crate::{connect, connect_with};

/// Long enough that no lease ends while a connection is held up.
const TTL: Duration = Duration::from_secs(3);
const INTERVAL: Duration = ms(200);
const TIMEOUT: Duration = ms(300);

async fn hold(locks: &LockManager) -> LockGuard {
    let request = locks.lock(NAME).ttl(TTL).renew(Renew::Every(INTERVAL));
    request.acquire().await.unwrap()
}

fn reason_of(error: LockError) -> LossReason {
    match error {
        LockError::TicketEnded { reason, .. } => reason,
        other => panic!("{other}"),
    }
}

/// The client sends an exchange again, and the second copy finds its own lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exchange_whose_command_or_reply_is_lost_takes_effect_once() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_with(LockManager::builder(), &proxy.url()).await;
    for lost in [Lost::Request, Lost::Reply] {
        let held = hold(&locks).await;
        let watch = held.watch();
        let monitor = server.monitor();
        proxy.lose_next(lost, "\r\n>");
        let ticket = held.into_ticket(LONG).await.unwrap();
        assert!(!proxy.is_armed(), "the proxy lost nothing");
        assert!(!watch.is_held() && !watch.is_lost());
        proxy.lose_next(lost, "\r\n>");
        let resumed = locks.resume(ticket.clone()).await.unwrap();
        assert!(!proxy.is_armed(), "the proxy lost nothing");
        let recording = monitor.stop();
        let counted = recording.all().iter().filter(|c| c.name() == "INCR");
        assert_eq!(counted.count(), 2, "{lost:?}");
        assert!(resumed.fencing_token() > Some(ticket.fencing_token()));
        assert!(resumed.remaining() <= time_to_expiry(&server, KEY));
        resumed.release().await.unwrap();
    }
    assert_nothing_left(&server, &locks).await;
    assert_eq!(locks.stats().lost, 0);
}

/// The server exchanges the owner, and the client never learns it. The lock is released long before its lease ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ticket_without_a_reply_is_released() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let builder = LockManager::builder()
        .command_timeout(TIMEOUT)
        .default_wait(TIMEOUT);
    let locks = connect_with(builder, &proxy.url()).await;
    for resumes in [false, true] {
        let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
        let call: Pin<Box<dyn Future<Output = Result<(), LockError>> + Send>> = if resumes {
            let ticket = held.into_ticket(LONG).await.unwrap();
            let locks = locks.clone();
            Box::pin(async move { locks.resume(ticket).await.map(drop) })
        } else {
            Box::pin(async move { held.into_ticket(LONG).await.map(drop) })
        };
        let value = || server.cli(&["GET", KEY]).text().to_owned();
        let before = value();
        for connection in 0..proxy.accepted() {
            proxy.mute(connection, Direction::ToClient);
        }
        let call = tokio::spawn(in_time(TIMEOUT, call));
        eventually_async(SOON, async || value() != before).await;
        let outcome = call.await.unwrap();
        assert_eq!(backend_error_kind(outcome), BackendErrorKind::TimedOut);
        proxy.forward();
        assert_nothing_left(&server, &locks).await;
    }
}

/// A renewal of the guard that the server executes after the exchange finds another owner. It neither lengthens nor
/// shortens the ticket's lease, and is no loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_on_its_way_does_not_change_the_lease_of_a_ticket() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_with(LockManager::builder(), &proxy.url()).await;
    drop(hold(&locks).await);
    shut_down_releases(&server).await;
    assert_eq!(proxy.accepted(), 2, "one of this runtime and the worker's");
    let worker = 1;
    proxy.hold(worker, Direction::ToServer);
    let held = hold(&locks).await;
    let watch = held.watch();
    eventually_async(SOON, async || held.remaining() < TTL - 2 * INTERVAL).await;
    let within = TTL / 3;
    let ticket = completes_within(AT_ONCE, held.into_ticket(within)).await;
    let ticket = ticket.expect("it does not wait").unwrap();
    let left = time_to_expiry(&server, KEY);
    assert!(left <= within, "{left:?}");
    let before = renewals(&server);
    proxy.resume(worker);
    eventually_async(SOON, async || renewals(&server) != before).await;
    let left = time_to_expiry(&server, KEY);
    assert!(left <= within, "{left:?}");
    assert!(!watch.is_lost() && watch.loss_reason().is_none() && !watch.is_held());
    eventually_async(SOON, async || server.cli(&["EXISTS", KEY]).integer() == 0).await;
    assert_eq!(
        reason_of(locks.resume(ticket).await.unwrap_err()),
        LossReason::Expired
    );
    assert_eq!(locks.stats().lost, 0);
    shut_down(&locks).await;
}

async fn shut_down_releases(server: &RedisServer) {
    eventually_async(SOON, async || server.cli(&["EXISTS", KEY]).integer() == 0).await;
}

/// Returns how many scripts the server has run.
fn renewals(server: &RedisServer) -> String {
    let info = server.cli(&["INFO", "commandstats"]);
    let mut lines = info.text().lines();
    let line = lines.find(|line| line.starts_with("cmdstat_evalsha:"));
    let line = line.expect("the server has run scripts");
    line.split(',').next().unwrap_or_default().to_owned()
}

/// A ticket is resumed when the server is back within the wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ticket_is_resumed_after_an_outage() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let giver = connect(&server).await;
    let builder = LockManager::builder().command_timeout(TIMEOUT);
    let taker = connect_with(builder, &proxy.url()).await;
    let ticket = hold(&giver).await.into_ticket(LONG).await.unwrap();
    proxy.refuse();
    proxy.cut_all();
    let resuming = tokio::spawn({
        let (taker, ticket) = (taker.clone(), ticket.clone());
        async move { taker.lock(NAME).wait(SOON).resume(ticket).await }
    });
    tokio::time::sleep(2 * TIMEOUT).await;
    assert!(!resuming.is_finished(), "it waits for the server");
    proxy.forward();
    let resumed = in_time(SOON, resuming).await.unwrap().unwrap();
    assert!(resumed.fencing_token() > Some(ticket.fencing_token()));
    resumed.release().await.unwrap();
    assert_nothing_left(&server, &taker).await;
}

/// The lock of a ticket looks like any other to operators, and they can release it.
#[tokio::test]
async fn operators_see_and_release_the_lock_of_a_ticket() {
    let server = RedisServer::start();
    let locks = connect_with(LockManager::builder().label("giver"), &server.url()).await;
    let ticket = hold(&locks).await.into_ticket(LONG).await.unwrap();
    let seen = locks.admin().inspect(NAME).await.unwrap();
    let shown = format!("{seen:?}");
    assert!(shown.contains("giver"), "{shown}");
    let held = format!("{ticket:?}");
    let owner = &ticket.to_string()[4..36];
    assert!(!held.contains(owner), "{held}");
    let release = locks.admin().force_release(NAME).by("ops@host");
    release.reason("stuck").await.unwrap();
    let reason = reason_of(locks.resume(ticket).await.unwrap_err());
    assert!(
        matches!(reason, LossReason::Removed | LossReason::Revoked { .. }),
        "{reason}"
    );
}

/// A ticket fits a manager with the same prefix only.
#[tokio::test]
async fn ticket_of_another_prefix_is_refused() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let other = connect_with(LockManager::builder().prefix("other:"), &server.url()).await;
    let ticket = hold(&locks).await.into_ticket(LONG).await.unwrap();
    let error = other.resume(ticket.clone()).await.unwrap_err();
    let LockError::Invalid(InvalidSetting::Ticket { reason, .. }) = error else {
        panic!("{error}");
    };
    assert_eq!(reason, InvalidTicketReason::OtherPrefix);
    locks.resume(ticket).await.unwrap().release().await.unwrap();
    assert_nothing_left(&server, &locks).await;
}

/// A process that stops hands its lock over, and the shutdown doesn't wait for anything.
#[tokio::test]
async fn manager_that_shuts_down_still_makes_a_ticket() {
    let server = RedisServer::start();
    let (stopping, other) = (connect(&server).await, connect(&server).await);
    let held = hold(&stopping).await;
    let mut stop = Box::pin(stopping.shutdown());
    assert!(cut(&mut stop, 1).await.is_none());
    let ticket = held.into_ticket(LONG).await.unwrap();
    in_time(AT_ONCE, stop).await.unwrap();
    let error = stopping.resume(ticket.clone()).await.unwrap_err();
    assert!(matches!(error, LockError::ShuttingDown), "{error}");
    other.resume(ticket).await.unwrap().release().await.unwrap();
}

/// A ticket is text that a program may pass on as it likes.
#[tokio::test]
async fn ticket_survives_its_text() {
    let locks = LockManager::in_memory();
    let ticket = locks.lock("{user}:ä b").acquire().await.unwrap();
    let ticket = ticket.into_ticket(LONG).await.unwrap();
    let text = ticket.to_string();
    assert!(
        text.bytes()
            .all(|it| it.is_ascii_alphanumeric() || it == b'.'),
        "{text}"
    );
    let again: LockTicket = text.parse().unwrap();
    assert_eq!(again, ticket);
    assert_eq!(locks.resume(again).await.unwrap().name(), "{user}:ä b");
}
