//! Users that may not use all commands.

use std::time::Duration;

use lock_core::error::BackendErrorKind;
use lock_core::{LockError, LockManager};
use test_support::RedisServer;
use test_support::fixtures::{NAME, SLACK, SOON, keys, ms};
use test_support::guide::acl_command;
use tests::{assert_nothing_left, granted, start_waiter};

use super::connect;

/// Runs sections and waiters of a user with these rights.
async fn assert_rights_suffice(rights: &[&str]) {
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

/// The guide names all required rights: the server denies nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documented_rights_are_sufficient() {
    let command = acl_command("locks");
    let server = RedisServer::start();
    assert_eq!(server.cli(&command).error(), None);
    let url = format!("redis://locks:secret@{}", server.address());
    let locks = LockManager::connect(&url).await.unwrap();
    let held = locks.lock(NAME).acquire().await.unwrap();
    let waiting = start_waiter(&server, locks.lock(NAME).wait(SOON), 1).await;
    held.renew().await.unwrap();
    held.release().await.unwrap();
    let granted = granted(SOON, waiting).await;
    granted.release().await.unwrap();
    assert!(locks.ping().await.unwrap().notifies_waiters);
    use_all_kinds(&locks).await;
    assert_nothing_left(&server, &locks).await;
    let denied = server.cli(&["ACL", "LOG"]);
    assert!(denied.array().is_empty(), "{denied:?}");
}

/// Holds, renews, hands over and downgrades shared locks.
async fn use_all_kinds(locks: &LockManager) {
    let lock = || locks.lock(NAME);
    let first = lock().permits(2).acquire().await.unwrap();
    let second = lock().permits(2).acquire().await.unwrap();
    first.renew().await.unwrap();
    let (reading, ()) = tokio::join!(lock().read().wait(SOON).acquire(), async {
        first.release().await.unwrap();
        second.release().await.unwrap();
    });
    reading.unwrap().release().await.unwrap();
    let writing = lock().write().acquire().await.unwrap();
    let reading = writing.downgrade().await.unwrap();
    assert!(lock().write().try_acquire().await.unwrap().is_none());
    reading.release().await.unwrap();
}

/// A user of the release before shared locks. The error says how to find the commands that the user may not run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exclusive_locks_work_without_the_rights_of_shared_locks() {
    let server = RedisServer::start();
    let mut command = acl_command("locks");
    let shared = ["+zcard", "+zremrangebyscore", "+pexpireat"];
    command.retain(|word| !shared.contains(&word.as_str()));
    assert_eq!(server.cli(&command).error(), None);
    let url = format!("redis://locks:secret@{}", server.address());
    let locks = LockManager::connect(&url).await.unwrap();
    let held = locks.lock(NAME).write().acquire().await.unwrap();
    let waiting = start_waiter(&server, locks.lock(NAME).wait(SOON), 1).await;
    held.renew().await.unwrap();
    held.release().await.unwrap();
    granted(SOON, waiting).await.release().await.unwrap();
    let denied = server.cli(&["ACL", "LOG"]);
    assert!(denied.array().is_empty(), "{denied:?}");

    for request in [locks.lock("other").read(), locks.lock("third").permits(2)] {
        let Err(LockError::Backend(error)) = request.acquire().await else {
            panic!("the user lacks rights");
        };
        assert_eq!(error.kind(), BackendErrorKind::Permission);
        // Not each version of the server names the command of a script. The text says what does.
        let text = error.to_string();
        assert!(text.contains("`lockctl doctor` names all"), "{text}");
        let denied = server.cli(&["ACL", "LOG"]);
        // The eighth part of an entry is the command.
        let command = denied.array()[0].array()[7].text();
        assert!(shared.contains(&&*format!("+{command}")), "{denied:?}");
    }
    // No key without an expiry is left.
    let left = keys(&server);
    assert!(!left.iter().any(|key| key.ends_with(":h")), "{left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_without_channels_poll() {
    assert_rights_suffice(&["~*", "resetchannels", "+@all"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_without_pubsub_commands_poll() {
    assert_rights_suffice(&["~*", "&*", "+@all", "-@pubsub"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_work_without_the_commands_of_the_handshake() {
    assert_rights_suffice(&["~*", "&*", "+@all", "-script", "-info", "-role"]).await;
}

/// A manager whose waiters get notifications, and a manager whose waiters poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn polling_and_notified_waiters_share_a_queue() {
    let server = RedisServer::start();
    server.cli(&["ACL", "SETUSER", "app", "on", ">pass", "~*", "+@all"]);
    let url = format!("redis://app:pass@{}", server.address());
    let polling = LockManager::connect(&url).await.unwrap();
    let notified = connect(&server).await;
    let mut held = notified.lock(NAME).acquire().await.unwrap();
    // A user that may not publish hands over too: notified waiters poll by themselves once a
    // second.
    let (poll_interval, head_interval) = (ms(500), Duration::from_secs(1));
    let mut waiters = Vec::new();
    for (number, (locks, within)) in (1..).zip([
        (&polling, poll_interval),
        (&notified, head_interval),
        (&polling, poll_interval),
        (&notified, head_interval),
    ]) {
        waiters.push((
            within,
            start_waiter(&server, locks.lock(NAME).wait(SOON), number).await,
        ));
    }
    for (within, waiting) in waiters {
        held.release().await.unwrap();
        held = granted(within + SLACK, waiting).await;
    }
    held.release().await.unwrap();
}
