//! Servers that send what no server should: too much, too slowly, or bytes that aren't a reply.
//!
//! Such a server may be a proxy that is broken, or another service at that port. It may cost the call that it answers,
//! but neither memory nor a lock, and the next connection has to work.

use std::time::Duration;

use lock_core::error::BackendErrorKind;
use lock_core::{LockError, LockManager};
use test_support::fixtures::{LONG, NAME, SOON, keys, ms};
use test_support::stand_in::{Answer, Quirk, Target};
use test_support::{RedisServer, StandIn, eventually, eventually_async};
use tests::{acquire_and_release, assert_nothing_left, backend_error_kind, granted, start_waiter};

use super::connect_with;

const ACQUIRES: Target = Target::Script("acquire");
const RENEWALS: Target = Target::Script("renew");
const RELEASES: Target = Target::Script("release");
const SUBSCRIPTIONS: Target = Target::Command("SUBSCRIBE");

/// The limit of a reply to a command of a lock, and that of a reply to an operator.
const LOCK_REPLY: u64 = 64 * 1024;
const OPERATOR_REPLY: u64 = 16 * 1024 * 1024;

/// What the buffers of the system take on the way, which no client has read.
const ON_THE_WAY: u64 = 16 * 1024 * 1024;

const TOO_LARGE: &str = "the server sent a reply of more than 65536 bytes";
const NO_PROTOCOL: &str = "the server does not speak the protocol of Redis";

/// Replies of which no command has one, and what the error says.
fn hostile() -> Vec<(Answer, &'static str)> {
    let raw = |bytes: &str| Answer::Raw(bytes.as_bytes().to_vec());
    vec![
        (Answer::Endless, TOO_LARGE),
        (Answer::EndlessItems(20_000), TOO_LARGE),
        // The announcement alone is more than fits.
        (Answer::EndlessItems(u64::MAX), TOO_LARGE),
        (Answer::Giant(4 << 30), TOO_LARGE),
        (Answer::Giant(LOCK_REPLY), TOO_LARGE),
        (Answer::Nested(17), NO_PROTOCOL),
        (Answer::Nested(100_000), NO_PROTOCOL),
        (Answer::Malformed, NO_PROTOCOL),
        (raw("$-2\r\n"), NO_PROTOCOL),
        (raw("*-7\r\n"), NO_PROTOCOL),
        (raw("$18446744073709551616\r\n"), NO_PROTOCOL),
        (raw("$3\r\nabcdef\r\n"), NO_PROTOCOL),
        (raw("\r\n"), NO_PROTOCOL),
        (raw("HTTP/1.1 400 Bad Request\r\n\r\n"), NO_PROTOCOL),
    ]
}

fn replies(target: &Target, answer: &Answer) -> [Quirk; 1] {
    [Quirk::Replies(target.clone(), answer.clone())]
}

/// A reply beyond its limit is not read to its end.
#[track_caller]
fn assert_not_read(stand_in: &StandIn, before: u64, limit: u64, answer: &Answer) {
    let taken = stand_in.streamed() - before;
    assert!(taken <= limit + ON_THE_WAY, "{answer:?}: {taken} bytes");
}

#[track_caller]
fn assert_broken(error: LockError, text: &str, answer: &Answer) {
    let shown = error.to_string();
    assert!(shown.contains(text), "{answer:?}: {shown}");
    let kind = backend_error_kind(Err::<(), _>(error));
    assert_eq!(kind, BackendErrorKind::Unreachable, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_reply_costs_the_call_and_nothing_else() {
    let server = RedisServer::start();
    let stand_in = StandIn::start(&server, []);
    let locks = connect_with(LockManager::builder(), &stand_in.url()).await;
    let held = locks.lock("held").ttl(LONG).acquire().await.unwrap();
    for (answer, text) in hostile() {
        let before = stand_in.streamed();
        stand_in.set(replies(&ACQUIRES, &answer));
        let refused = locks.lock(NAME).wait(Duration::ZERO).acquire().await;
        assert_broken(refused.unwrap_err(), text, &answer);
        stand_in.set(replies(&RENEWALS, &answer));
        assert_broken(held.renew().await.unwrap_err(), text, &answer);
        stand_in.set([]);
        held.renew().await.unwrap();
        acquire_and_release(&locks).await;
        assert!(!held.is_lost(), "{answer:?}");
        assert_not_read(&stand_in, before, 2 * LOCK_REPLY, &answer);
    }
    held.release().await.unwrap();
    assert_nothing_left(&server, &locks).await;
}

/// The release is sent again until the server has replied to it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_reply_to_a_release_leaves_no_lock() {
    let server = RedisServer::start();
    let stand_in = StandIn::start(&server, []);
    let locks = connect_with(LockManager::builder(), &stand_in.url()).await;
    for (answer, text) in hostile() {
        let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
        stand_in.set(replies(&RELEASES, &answer));
        assert_broken(held.release().await.unwrap_err(), text, &answer);
        stand_in.set([]);
        eventually(SOON, || keys(&server).is_empty());
    }
    assert_nothing_left(&server, &locks).await;
}

/// What comes behind a reply would be taken for the reply to the next command. What is pushed is none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn second_reply_ends_the_connection_and_a_push_does_not() {
    let server = RedisServer::start();
    let stand_in = StandIn::start(&server, []);
    let locks = connect_with(LockManager::builder(), &stand_in.url()).await;
    acquire_and_release(&locks).await;
    let connections = stand_in.accepted();
    for push in [">1\r\n+invalidate\r\n", ">2\r\n+a\r\n*1\r\n:1\r\n>0\r\n"] {
        let answer = Answer::Behind(push.as_bytes().to_vec());
        stand_in.set([&ACQUIRES, &RENEWALS, &RELEASES].map(|it| {
            let [quirk] = replies(it, &answer);
            quirk
        }));
        let held = locks.lock(NAME).acquire().await.unwrap();
        held.renew().await.unwrap();
        held.release().await.unwrap();
    }
    assert_eq!(stand_in.accepted(), connections);
    stand_in.set(replies(&ACQUIRES, &Answer::Behind(b"+OK\r\n".to_vec())));
    let refused = locks.lock(NAME).wait(Duration::ZERO).acquire().await;
    let kind = backend_error_kind(refused);
    assert_eq!(kind, BackendErrorKind::Unsupported);
    stand_in.set([]);
    acquire_and_release(&locks).await;
    assert!(
        stand_in.accepted() > connections,
        "the connection is another one"
    );
    assert_nothing_left(&server, &locks).await;
}

/// Each byte is progress, but the time limit covers the whole reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dripping_reply_ends_at_the_time_limit() {
    let server = RedisServer::start();
    let stand_in = StandIn::start(&server, []);
    let builder = LockManager::builder().command_timeout(ms(300));
    let locks = connect_with(builder, &stand_in.url()).await;
    let held = locks.lock("held").ttl(LONG).acquire().await.unwrap();
    // The shortest reply has some thirty bytes.
    let answer = Answer::Dripping(ms(100));
    stand_in.set(replies(&ACQUIRES, &answer));
    let refused = locks.lock(NAME).wait(Duration::ZERO).acquire().await;
    assert_eq!(backend_error_kind(refused), BackendErrorKind::TimedOut);
    stand_in.set(replies(&RENEWALS, &answer));
    let refused = held.renew().await;
    assert_eq!(backend_error_kind(refused), BackendErrorKind::TimedOut);
    stand_in.set([]);
    // The reply to the earlier renewal still drips, and belongs to no later command.
    eventually_async(SOON, async || held.renew().await.is_ok()).await;
    let next = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
    next.release().await.unwrap();
    assert!(!held.is_lost());
    held.release().await.unwrap();
    assert_nothing_left(&server, &locks).await;
}

/// Waiters poll until a subscription works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_subscription_costs_notifications_and_nothing_else() {
    let server = RedisServer::start();
    let push = |bytes: &str| Answer::Raw(bytes.as_bytes().to_vec());
    let answers = [
        Answer::Endless,
        Answer::EndlessItems(20_000),
        Answer::Giant(4 << 30),
        Answer::Nested(100_000),
        Answer::Malformed,
        push(">3\r\n$7\r\nmessage\r\n$1000000\r\n"),
        push(">-2\r\n"),
        push(">99999999999\r\n"),
        // A reply to no command.
        Answer::Behind(b"+OK\r\n".to_vec()),
        // A confirmation of something else, and a message on a channel that nobody wants.
        Answer::Behind(
            b">3\r\n+subscribe\r\n+other\r\n:1\r\n>3\r\n+message\r\n+other\r\n+x\r\n".to_vec(),
        ),
        Answer::Dripping(ms(5)),
    ];
    for answer in answers {
        let stand_in = StandIn::start(&server, replies(&SUBSCRIPTIONS, &answer));
        let locks = connect_with(LockManager::builder(), &stand_in.url()).await;
        let held = locks.lock("held").ttl(LONG).acquire().await.unwrap();
        let first = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
        let waiting = start_waiter(&server, locks.lock(NAME).wait(SOON), 1).await;
        first.release().await.unwrap();
        granted(SOON, waiting).await.release().await.unwrap();
        held.renew().await.unwrap();
        assert_not_read(&stand_in, 0, LOCK_REPLY, &answer);
        stand_in.set([]);
        // The listener pauses before it connects again.
        let first = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
        let waiting = start_waiter(&server, locks.lock(NAME).wait(SOON), 1).await;
        let notifies = async || locks.ping().await.is_ok_and(|pong| pong.notifies_waiters);
        eventually_async(SOON, notifies).await;
        first.release().await.unwrap();
        granted(SOON, waiting).await.release().await.unwrap();
        assert!(!held.is_lost(), "{answer:?}");
        held.release().await.unwrap();
        assert_nothing_left(&server, &locks).await;
    }
}

/// Lists of operators are longer, and have a limit too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_reply_to_an_operator_has_its_own_limit() {
    let server = RedisServer::start();
    let stand_in = StandIn::start(&server, []);
    let locks = connect_with(LockManager::builder(), &stand_in.url()).await;
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    let inspections = Target::Script("inspect");
    for answer in [
        Answer::Endless,
        // Each of them has four bytes, so the limit comes before the end.
        Answer::EndlessItems(OPERATOR_REPLY / 3 - 10),
        Answer::Giant(OPERATOR_REPLY),
        Answer::Giant(64 << 30),
    ] {
        let before = stand_in.streamed();
        stand_in.set(replies(&inspections, &answer));
        let refused = locks.admin().inspect(NAME).await;
        assert_broken(
            refused.unwrap_err(),
            "the server sent a reply of more than",
            &answer,
        );
        stand_in.set([]);
        locks.admin().inspect(NAME).await.unwrap();
        held.renew().await.unwrap();
        assert_not_read(&stand_in, before, OPERATOR_REPLY, &answer);
    }
    // As long as it may be, but no inspection.
    stand_in.set(replies(&inspections, &Answer::Giant(OPERATOR_REPLY - 100)));
    let kind = backend_error_kind(locks.admin().inspect(NAME).await);
    assert_eq!(kind, BackendErrorKind::Unsupported);
    stand_in.set([]);
    held.release().await.unwrap();
    assert_nothing_left(&server, &locks).await;
}

/// The handshake reads replies by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_handshake_is_an_error_and_not_a_hang() {
    let server = RedisServer::start();
    for verb in ["HELLO", "ROLE", "INFO", "TIME", "SCRIPT"] {
        for answer in [
            Answer::Endless,
            Answer::Giant(4 << 30),
            Answer::Nested(100_000),
        ] {
            let stand_in = StandIn::start(&server, replies(&Target::Command(verb), &answer));
            let builder = tests::one_attempt(LockManager::builder());
            let refused = builder.connect(&stand_in.url()).await;
            assert!(refused.is_err(), "{verb} {answer:?}");
            assert_not_read(&stand_in, 0, 4 * LOCK_REPLY, &answer);
            stand_in.set([]);
            let builder = tests::one_attempt(LockManager::builder());
            let locks = builder.connect(&stand_in.url()).await.unwrap();
            acquire_and_release(&locks).await;
        }
    }
}
