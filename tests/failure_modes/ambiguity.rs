//! Ambiguity and connections: what was done is not known, or comes late, or not at all.

use std::pin::pin;
use std::time::{Duration, Instant};

use lock_core::{BackendErrorKind, LockError, Renew};
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

const TIMEOUT: Duration = ms(300);

/// Asked again, it is the same grant, and counted no longer than the server counts. Where it
/// cannot be asked again, it is taken back long before its ttl.
#[tokio::test]
async fn f01_lost_reply_is_asked_again_or_taken_back() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_with_timeout(&proxy.url(), TIMEOUT).await;
    let monitor = server.monitor();
    proxy.lose_next(Lost::Reply, NAME);
    let request = locks.lock(NAME).ttl(ms(2_000)).renew(Renew::Never);
    let held = request.acquire().await.unwrap();
    assert!(!proxy.is_armed(), "no reply was lost");
    let theirs = time_to_expiry(&server, KEY);
    assert!(
        held.remaining() <= theirs,
        "we count longer than {theirs:?}"
    );
    let value = server.cli(&["GET", KEY]);
    let number = fencing_token(&held).to_string();
    assert_eq!(value.text().split(' ').nth(1), Some(number.as_str()));
    assert_eq!(grants(&monitor.stop()), 1);
    held.release().await.unwrap();

    for connection in 0..proxy.accepted() {
        proxy.mute(connection, Direction::ToClient);
    }
    let asking = tokio::spawn(locks.lock(NAME).ttl(LONG).acquire());
    eventually_async(SOON, async || exists(&server, KEY)).await;
    let outcome = asking.await.unwrap();
    assert_eq!(backend_error_kind(outcome), BackendErrorKind::TimedOut);
    assert_nothing_left(&server, &locks).await;
}

/// After each number of polls, and in the very moment in which the reply is there and no task has
/// read it.
#[tokio::test]
async fn f02_dropped_at_the_reply_leaves_no_key() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    for polls in 1..8 {
        let mut asking = pin!(locks.lock(NAME).ttl(LONG).acquire());
        for _ in 0..polls {
            if poll_once(&mut asking).await.is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    eventually_async(SOON, async || keys(&server).is_empty()).await;

    for _ in 0..5 {
        let mut asking = Box::pin(locks.lock(NAME).ttl(LONG).acquire());
        while !exists(&server, KEY) {
            assert!(poll_once(&mut asking).await.is_pending());
            tokio::task::yield_now().await;
        }
        drop(asking);
        eventually_async(SOON, async || keys(&server).is_empty()).await;
    }
    assert_nothing_left(&server, &locks).await;
}

/// Closing the socket does not call back what was sent: the server carries it out when it wakes
/// up. By then it is late.
#[tokio::test]
async fn f03_a_command_that_outlives_its_socket_does_nothing() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_with_timeout(&proxy.url(), TIMEOUT).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    held.release().await.unwrap();
    let monitor = server.monitor();
    server.stop();
    let asked = Instant::now();
    let outcome = locks.lock(NAME).ttl(LONG).try_acquire().await;
    assert_eq!(backend_error_kind(outcome), BackendErrorKind::TimedOut);
    // The process might as well have died: from now on it can take nothing back.
    proxy.refuse();
    proxy.cut_all();
    // The last moment at which the command may be carried out.
    tokio::time::sleep_until((asked + TIMEOUT + NOTICE).into()).await;
    server.cont();
    let recording = monitor.stop();
    assert!(recording.client_commands_about(NAME) > 0, "it never came");
    assert_eq!(grants(&recording), 0);
    assert!(!exists(&server, KEY));
    proxy.forward();
    assert_nothing_left(&server, &locks).await;
}

/// The runtime that asked ends, and with it the connection, while the command is on its way. The
/// cancel comes from the keeper's connection, and is the faster one.
#[test]
fn f04_a_cancel_that_overtakes_its_acquire_is_repeated() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let staying = current_thread_runtime();
    let ending = current_thread_runtime();
    let locks = staying.block_on(connect_with_timeout(&proxy.url(), ms(2_000)));
    // All three connections are there before the network holds one back.
    staying.block_on(async {
        drop(locks.lock(NAME).acquire().await.unwrap());
        shut_down(&locks).await;
    });
    ending.block_on(async {
        let held = locks.lock(NAME).acquire().await.unwrap();
        held.release().await.unwrap();
    });
    let slow = proxy.accepted() - 1;
    assert_eq!(slow, 2, "those of two runtimes and the keeper");
    let monitor = server.monitor();
    proxy.hold(slow, Direction::ToServer);
    let asking = ending.spawn(locks.lock(NAME).ttl(LONG).acquire());
    ending.block_on(async {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    });
    assert!(!asking.is_finished());
    let calls = || {
        let info = server.cli(&["INFO", "commandstats"]);
        let mut lines = info.text().lines();
        let line = lines.find(|line| line.starts_with("cmdstat_evalsha:"));
        line.expect("there were some").to_owned()
    };
    let before = calls();
    drop(ending);
    eventually(SOON, || calls() != before);
    proxy.resume(slow);
    staying.block_on(assert_nothing_left(&server, &locks));

    // What reached the server, in its order, by the hash of the script: a cancel, the acquire, and
    // the cancel again.
    let recording = monitor.stop();
    let calls = recording.from_clients().filter(|c| c.name() == "EVALSHA");
    let scripts: Vec<_> = calls.map(|call| call.words[1].as_str()).collect();
    assert!(scripts.len() >= 3, "{scripts:?}");
    assert_ne!(scripts[0], scripts[1], "{scripts:?}");
    assert!(scripts[2..].iter().all(|script| *script == scripts[0]));
    assert_eq!(grants(&recording), 1, "it came too late to be carried out");
}

#[tokio::test]
async fn f05_a_grant_that_comes_after_its_lease_is_let_go() {
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

/// A connection without answers is given up: at once when a command had all the time it may
/// take, after a few when they had less.
#[tokio::test]
async fn f06_a_black_hole_is_left_for_a_new_connection() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_with_timeout(&proxy.url(), TIMEOUT).await;
    proxy.mute(0, Direction::ToClient);
    let outcome = in_time(TIMEOUT, locks.lock(NAME).try_acquire()).await;
    assert_eq!(backend_error_kind(outcome), BackendErrorKind::TimedOut);
    let held = locks.lock(NAME).wait(AT_ONCE).acquire().await.unwrap();
    held.release().await.unwrap();

    // Now in the other direction, and with little time for each.
    let proxy = Proxy::in_front_of(&server);
    let patient = connect_to(&proxy.url()).await;
    proxy.mute(0, Direction::ToServer);
    let wait = ms(60);
    let mut tries = 0;
    while let Err(error) = in_time(wait, patient.lock(NAME).wait(wait).acquire()).await {
        assert!(matches!(error, LockError::Backend(_)), "{error}");
        tries += 1;
        assert!(tries < 6, "the connection is never given up");
    }
    assert!(tries > 0, "nothing was muted");
    shut_down(&patient).await;
    assert_nothing_left(&server, &locks).await;
}

/// Neither one whose port is closed, nor one that takes commands and does not answer.
#[tokio::test]
async fn f07_a_dead_server_costs_no_more_than_the_timeout() {
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
    // Whatever a command may take: a renewal is of no use after the lease.
    let server = RedisServer::start();
    let locks = connect_with_timeout(&server.url(), LONG).await;
    let request = locks.lock(NAME).ttl(ms(400)).renew(Renew::Never);
    let held = request.acquire().await.unwrap();
    server.stop();
    backend_error_kind(in_time(ms(400), held.renew()).await);
}

#[tokio::test]
async fn f09_a_new_connection_has_the_database_and_the_password() {
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

/// A waiter gets the lock when there is room again, and learns at once of what time
/// does not mend.
#[tokio::test]
async fn f10_a_refused_connection_is_not_a_busy_lock() {
    let server = RedisServer::start();
    let locks = connect_with_timeout(&server.url(), TIMEOUT).await;
    let mut admin = server.connect().unwrap();
    admin.call(&["CONFIG", "SET", "maxclients", "1"]).unwrap();
    admin.call(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    // The server says why and hangs up before it is asked anything, so that its reason is not
    // always heard.
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
