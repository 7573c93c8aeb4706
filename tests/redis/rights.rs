//! Users that may not use all commands.

use std::time::Duration;

use lock_core::LockManager;
use test_support::RedisServer;
use test_support::fixtures::{NAME, SLACK, SOON, ms};
use tests::{assert_nothing_left, granted, start_waiter};

use super::connect;

/// Sections and waiters of a user with these rights.
async fn suffice(rights: &[&str]) {
    let server = RedisServer::start();
    let mut command = vec!["ACL", "SETUSER", "app", "on", ">pass"];
    command.extend(rights);
    assert_eq!(server.cli(&command).error(), None);
    let url = format!("redis://app:pass@{}", server.address());
    let managers = [
        LockManager::connect(&url).await.unwrap(),
        LockManager::connect(&url).await.unwrap(),
    ];
    let held = managers[0].lock(NAME).acquire().await.unwrap();
    held.renew().await.unwrap();
    let first = start_waiter(&server, managers[1].lock(NAME).wait(SOON), 1).await;
    let second = start_waiter(&server, managers[0].lock(NAME).wait(SOON), 2).await;
    held.release().await.unwrap();
    // A waiter without notifications polls every half second.
    let poll = ms(500);
    let held = granted(poll + SLACK, first).await;
    assert!(!second.is_finished());
    held.release().await.unwrap();
    granted(poll + SLACK, second).await.release().await.unwrap();
    for locks in &managers {
        assert_nothing_left(&server, locks).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_channels_waiters_ask() {
    suffice(&["~*", "resetchannels", "+@all"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_pubsub_commands_waiters_ask() {
    suffice(&["~*", "&*", "+@all", "-@pubsub"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_commands_of_the_preflight_locks_work() {
    suffice(&["~*", "&*", "+@all", "-script", "-info", "-role"]).await;
}

/// One manager that may be pushed to, among others that may not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_ask_and_those_who_are_told_share_a_queue() {
    let server = RedisServer::start();
    server.cli(&["ACL", "SETUSER", "app", "on", ">pass", "~*", "+@all"]);
    let url = format!("redis://app:pass@{}", server.address());
    let asks = LockManager::connect(&url).await.unwrap();
    let notified = connect(&server).await;
    let mut held = notified.lock(NAME).acquire().await.unwrap();
    // A user that may not publish hands over all the same: even notified waiters poll by
    // themselves once a second.
    let (asked, looked) = (ms(500), Duration::from_secs(1));
    let mut line = Vec::new();
    for (number, (locks, within)) in (1..).zip([
        (&asks, asked),
        (&notified, looked),
        (&asks, asked),
        (&notified, looked),
    ]) {
        line.push((
            within,
            start_waiter(&server, locks.lock(NAME).wait(SOON), number).await,
        ));
    }
    for (within, waiting) in line {
        held.release().await.unwrap();
        held = granted(within + SLACK, waiting).await;
    }
    held.release().await.unwrap();
}
