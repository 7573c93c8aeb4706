//! Ambiguous commands and connections: a command takes effect late, or not at all, or the client
//! cannot know whether it did.

use std::pin::pin;
use std::time::{Duration, Instant};

use lock_core::error::BackendErrorKind;
use lock_core::{LockError, Renew};
use test_support::fixtures::{
    AT_ONCE, KEY, LONG, NAME, NOTICE, QUEUE, SOON, current_thread_runtime, exists, keys, ms,
    time_to_expiry,
};
use test_support::{Direction, Lost, Proxy, RedisServer, eventually, eventually_async};
use tests::{
    assert_nothing_left, backend_error_kind, connect, connect_to, connect_with_timeout,
    fencing_token, granted, in_time, poll_once, shut_down,
};

use super::grants;

const TIMEOUT: Duration = ms(600);

/// An acquire that is sent again gets the same grant. The client counts its lease no longer than
/// the server does. When the client cannot send again, it cancels long before the ttl.
#[tokio::test]
async fn f01_lost_acquire_reply_is_retried_or_cancelled() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_with_timeout(&proxy.url(), TIMEOUT).await;
    let monitor = server.monitor();
    proxy.lose_next(Lost::Reply, NAME);
    let request = locks.lock(NAME).ttl(ms(2_000)).renew(Renew::Never);
    let held = request.acquire().await.unwrap();
    assert!(!proxy.is_armed(), "the proxy lost no reply");
    let at_server = time_to_expiry(&server, KEY);
    assert!(
        held.remaining() <= at_server,
        "the client counts longer than the server: {at_server:?}"
    );
    let value = server.cli(&["GET", KEY]);
    let number = fencing_token(&held).to_string();
    assert_eq!(value.text().split(' ').nth(1), Some(number.as_str()));
    assert_eq!(grants(&monitor.stop()), 1);
    held.release().await.unwrap();

    for connection in 0..proxy.accepted() {
        proxy.mute(connection, Direction::ToClient);
    }
    let acquiring = tokio::spawn(locks.lock(NAME).ttl(LONG).acquire());
    eventually_async(SOON, async || exists(&server, KEY)).await;
    let outcome = acquiring.await.unwrap();
    assert_eq!(backend_error_kind(outcome), BackendErrorKind::TimedOut);
    assert_nothing_left(&server, &locks).await;
}

/// Drops the future after each number of polls, and when the reply is there and no task has read
/// it.
#[tokio::test]
async fn f02_acquire_dropped_at_the_reply_leaves_no_key() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    for polls in 1..8 {
        let mut acquiring = pin!(locks.lock(NAME).ttl(LONG).acquire());
        for _ in 0..polls {
            if poll_once(&mut acquiring).await.is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    eventually_async(SOON, async || keys(&server).is_empty()).await;

    for _ in 0..5 {
        let mut acquiring = Box::pin(locks.lock(NAME).ttl(LONG).acquire());
        while !exists(&server, KEY) {
            assert!(poll_once(&mut acquiring).await.is_pending());
            tokio::task::yield_now().await;
        }
        drop(acquiring);
        eventually_async(SOON, async || keys(&server).is_empty()).await;
    }
    assert_nothing_left(&server, &locks).await;
}

/// Closing a socket does not withdraw the commands in it. The server executes them when it
/// continues, and by then they are late.
#[tokio::test]
async fn f03_command_that_outlives_its_connection_does_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_with_timeout(&proxy.url(), TIMEOUT).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    held.release().await.unwrap();
    let monitor = server.monitor();
    server.stop();
    let started = Instant::now();
    let outcome = locks.lock(NAME).ttl(LONG).try_acquire().await;
    assert_eq!(backend_error_kind(outcome), BackendErrorKind::TimedOut);
    // The client cannot connect again, as if the process had died: it cannot cancel.
    proxy.refuse();
    proxy.cut_all();
    // The last moment at which the server may execute the command.
    tokio::time::sleep_until((started + TIMEOUT + NOTICE).into()).await;
    server.cont();
    let recording = monitor.stop();
    assert!(
        recording.client_commands_about(NAME) > 0,
        "the command never reached the server"
    );
    assert_eq!(grants(&recording), 0);
    assert!(!exists(&server, KEY));
    proxy.forward();
    assert_nothing_left(&server, &locks).await;
}

/// The runtime that sent the acquire ends, and its connection closes, while the command is on its
/// way. The background worker sends the cancel on its own connection, and the cancel arrives first.
#[test]
fn f04_cancel_that_overtakes_its_acquire_is_repeated() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let staying = current_thread_runtime();
    let ending = current_thread_runtime();
    let locks = ending.block_on(connect_with_timeout(&proxy.url(), ms(2_000)));
    let slow = 0;
    // Opens both connections before the network delays one of them.
    ending.block_on(async {
        drop(locks.lock(NAME).acquire().await.unwrap());
        shut_down(&locks).await;
    });
    assert_eq!(
        proxy.accepted(),
        2,
        "one of the runtime, and one of the background worker"
    );
    let monitor = server.monitor();
    proxy.hold(slow, Direction::ToServer);
    let acquiring = ending.spawn(locks.lock(NAME).ttl(LONG).acquire());
    ending.block_on(async {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    });
    assert!(!acquiring.is_finished());
    let calls = || {
        let info = server.cli(&["INFO", "commandstats"]);
        let mut lines = info.text().lines();
        let line = lines.find(|line| line.starts_with("cmdstat_evalsha:"));
        line.expect("the server has run scripts").to_owned()
    };
    let before = calls();
    drop(ending);
    eventually(SOON, || calls() != before);
    proxy.resume(slow);
    staying.block_on(assert_nothing_left(&server, &locks));

    // The commands that reached the server, in order, by the hash of the script: a cancel, the
    // acquire, and the cancel again.
    let recording = monitor.stop();
    let calls = recording.from_clients().filter(|c| c.name() == "EVALSHA");
    let scripts: Vec<_> = calls.map(|call| call.words[1].as_str()).collect();
    let is_in_order = matches!(&scripts[..], [cancel, acquire, again @ ..]
        if acquire != cancel && !again.is_empty() && again.iter().all(|script| script == cancel));
    assert!(is_in_order, "{:#?}", recording.all());
    assert_eq!(
        grants(&recording),
        1,
        "the acquire was too late to be executed"
    );
}

#[tokio::test]
async fn f05_late_grant_is_released() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_to(&proxy.url()).await;
    proxy.delay(Direction::ToClient, ms(300));
    let request = locks.lock(NAME).ttl(ms(200));
    let outcome = request.clone().try_acquire().await;
    assert_eq!(backend_error_kind(outcome), BackendErrorKind::TimedOut);
    let wait = ms(900);
    let outcome = in_time(wait, request.clone().wait(wait).acquire()).await;
    let error = outcome.unwrap_err();
    let timeout = matches!(error, LockError::Timeout { .. } | LockError::Backend(_));
    assert!(timeout, "{error}");
    proxy.forward();
    assert_nothing_left(&server, &locks).await;
    let held = request.wait(SOON).acquire().await.unwrap();
    held.release().await.unwrap();
}

/// The client replaces a connection without replies. It does so at once after a command that had
/// the whole command timeout, and after a few commands that had less time.
#[tokio::test]
async fn f06_silent_connection_is_replaced() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_with_timeout(&proxy.url(), TIMEOUT).await;
    proxy.mute(0, Direction::ToClient);
    let outcome = in_time(TIMEOUT, locks.lock(NAME).try_acquire()).await;
    assert_eq!(backend_error_kind(outcome), BackendErrorKind::TimedOut);
    let held = locks.lock(NAME).wait(AT_ONCE).acquire().await.unwrap();
    held.release().await.unwrap();

    // The same in the other direction, and with little time for each command.
    let proxy = Proxy::in_front_of(&server);
    let patient = connect_to(&proxy.url()).await;
    proxy.mute(0, Direction::ToServer);
    let wait = ms(60);
    let mut tries = 0;
    while let Err(error) = in_time(wait, patient.lock(NAME).wait(wait).acquire()).await {
        assert!(matches!(error, LockError::Backend(_)), "{error}");
        tries += 1;
        assert!(tries < 6, "the client never replaces the connection");
    }
    assert!(tries > 0, "the proxy muted nothing");
    shut_down(&patient).await;
    assert_nothing_left(&server, &locks).await;
}

/// The server's port is closed, or the server accepts commands and does not reply.
#[tokio::test]
async fn f07_dead_server_costs_no_more_than_the_timeout() {
    for dies in [RedisServer::kill9 as fn(&RedisServer), RedisServer::stop] {
        let server = RedisServer::start();
        let locks = connect_with_timeout(&server.url(), TIMEOUT).await;
        let request = locks.lock("held").ttl(ms(2_500)).renew(Renew::Never);
        let held = request.acquire().await.unwrap();
        dies(&server);
        let kinds = [BackendErrorKind::Unreachable, BackendErrorKind::TimedOut];
        let outcome = in_time(TIMEOUT, locks.lock(NAME).try_acquire()).await;
        assert!(kinds.contains(&backend_error_kind(outcome)));
        for wait in [ms(150), ms(500)] {
            let outcome = in_time(wait, locks.lock(NAME).wait(wait).acquire()).await;
            assert!(kinds.contains(&backend_error_kind(outcome)));
        }
        assert!(kinds.contains(&backend_error_kind(in_time(TIMEOUT, held.renew()).await)));
        assert!(kinds.contains(&backend_error_kind(in_time(TIMEOUT, held.release()).await)));
    }
    // Whatever the command timeout is, a renewal is useless after the lease.
    let server = RedisServer::start();
    let locks = connect_with_timeout(&server.url(), LONG).await;
    let request = locks.lock(NAME).ttl(ms(400)).renew(Renew::Never);
    let held = request.acquire().await.unwrap();
    server.stop();
    backend_error_kind(in_time(ms(400), held.renew()).await);
}

#[tokio::test]
async fn f09_new_connection_selects_the_database_and_authenticates() {
    let server = RedisServer::options().password("s3cret").start();
    let locks = connect_to(&format!("{}/3", server.url())).await;
    let mut admin = server.connect().unwrap();
    admin.call(&["SELECT", "3"]).unwrap();
    for _ in 0..3 {
        admin.call(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
        let held = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
        assert_eq!(admin.call(&["EXISTS", KEY]).unwrap().integer(), 1);
        let waiting = tokio::spawn(locks.lock(NAME).wait(SOON).acquire());
        eventually_async(SOON, async || {
            admin.call(&["ZCARD", QUEUE]).unwrap().integer() == 1
        })
        .await;
        for kind in ["normal", "pubsub"] {
            admin.call(&["CLIENT", "KILL", "TYPE", kind]).unwrap();
        }
        held.release().await.unwrap();
        let held = granted(AT_ONCE, waiting).await;
        admin.call(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
        held.release().await.unwrap();
    }
    assert_eq!(keys(&server), Vec::<String>::new(), "in database 0");
    assert_eq!(admin.call(&["EXISTS", KEY]).unwrap().integer(), 0);
}

/// A waiter gets the lock when the server accepts clients again. A waiter gets an error at once
/// when retrying cannot help.
#[tokio::test]
async fn f10_refused_connection_is_a_backend_error() {
    let server = RedisServer::start();
    let locks = connect_with_timeout(&server.url(), TIMEOUT).await;
    let mut admin = server.connect().unwrap();
    admin.call(&["CONFIG", "SET", "maxclients", "1"]).unwrap();
    admin.call(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    // The server sends the reason and closes the connection before the client sends anything, so
    // the client does not always read the reason.
    let kinds = [
        BackendErrorKind::TooManyClients,
        BackendErrorKind::Unreachable,
    ];
    for _ in 0..3 {
        let outcome = in_time(TIMEOUT, locks.lock(NAME).try_acquire()).await;
        assert!(kinds.contains(&backend_error_kind(outcome)));
    }
    let waiting = tokio::spawn(locks.lock(NAME).wait(SOON).acquire());
    tokio::task::yield_now().await;
    admin.call(&["CONFIG", "SET", "maxclients", "100"]).unwrap();
    granted(SOON, waiting).await.release().await.unwrap();

    admin
        .call(&["CONFIG", "SET", "requirepass", "s3cret"])
        .unwrap();
    admin.call(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    for request in [locks.lock(NAME), locks.lock(NAME).wait(SOON)] {
        let outcome = in_time(TIMEOUT, request.try_acquire()).await;
        assert_eq!(
            backend_error_kind(outcome),
            BackendErrorKind::Authentication
        );
    }
    admin.call(&["CONFIG", "SET", "requirepass", ""]).unwrap();
    assert_nothing_left(&server, &locks).await;
}
