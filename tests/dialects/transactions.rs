//! Release and renewal with WATCH and MULTI.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lock_core::LockError;
use test_support::fixtures::{KEY, NAME, SOON, exists, ms};
use test_support::{Connection, Direction, Neighbour, Proxy, RedisServer, eventually_async};
use tests::{WATCH_MULTI, acquire_and_release, shut_down};
use tokio::task::JoinSet;

use super::connect_in;

/// Another client touches the key between the read and the write, and removes nothing. The library
/// repeats the transaction until it succeeds. The client stops when it has disturbed a transaction:
/// a faster one could disturb all of them.
#[tokio::test]
async fn concurrent_change_without_loss_is_retried() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    proxy.delay_round_trip(ms(8));
    let locks = connect_in(WATCH_MULTI, &proxy.url()).await;
    let touches = Arc::<AtomicBool>::default();
    let touching = Arc::clone(&touches);
    let mut known = 0;
    let neighbour = Neighbour::of(&server, move |connection| {
        let tried = transactions(connection);
        if tried > known {
            touching.store(false, Ordering::SeqCst);
        }
        known = tried;
        if touching.load(Ordering::SeqCst) {
            connection.call(&["PEXPIRE", KEY, "60000"]).unwrap();
        }
        std::thread::sleep(ms(1));
    });
    for _ in 0..10 {
        let held = locks.lock(NAME).acquire().await.unwrap();
        touches.store(true, Ordering::SeqCst);
        held.renew().await.unwrap();
        touches.store(true, Ordering::SeqCst);
        held.release().await.unwrap();
        assert!(!exists(&server, KEY));
    }
    drop(neighbour);
    let tries = transactions(&mut server.connect().unwrap());
    assert!(
        tries > 20,
        "{tries} transactions for 20 changes: no transaction was disturbed"
    );
}

/// Returns how many transactions the server has executed or given up.
fn transactions(connection: &mut Connection) -> u64 {
    let stats = connection.call(&["INFO", "commandstats"]).unwrap();
    let after = stats.text().split_once("cmdstat_exec:calls=");
    let calls = after.and_then(|(_, after)| after.split(',').next());
    calls.map_or(0, |calls| calls.parse().unwrap())
}

/// The key changes its owner between the read and the write: that is a loss, and the new owner
/// keeps the key.
#[tokio::test]
async fn concurrent_change_of_the_owner_is_reported_as_loss() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = connect_in(WATCH_MULTI, &proxy.url()).await;
    // The first transaction opens the connection of the transactions, after the connection of the
    // locks.
    acquire_and_release(&locks).await;
    let transactions = proxy.accepted() - 1;
    let held = locks.lock(NAME).acquire().await.unwrap();
    let monitor = server.monitor();
    proxy.hold(transactions, Direction::ToClient);
    let releasing = tokio::spawn(held.release());
    let watched = || {
        server
            .cli(&["INFO", "commandstats"])
            .text()
            .contains("cmdstat_watch:calls=2")
    };
    eventually_async(SOON, async || watched()).await;
    server.cli(&["SET", KEY, "another owner", "PX", "60000"]);
    proxy.resume(transactions);
    let error = releasing.await.unwrap().unwrap_err();
    assert!(matches!(error, LockError::Lost { .. }), "{error}");
    assert_eq!(server.cli(&["GET", KEY]).text(), "another owner");
    let recording = monitor.stop();
    let tries = recording
        .from_clients()
        .filter(|c| c.name() == "EXEC")
        .count();
    assert_eq!(
        tries, 2,
        "one transaction was sent before the loss was known, and had no effect"
    );
}

/// The connection for all other commands is broken, and no new one can be made.
#[tokio::test]
async fn set_is_renewed_over_the_connection_for_transactions_alone() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    proxy.record();
    let locks = connect_in(WATCH_MULTI, &proxy.url()).await;
    let held = locks.lock_all(["a", "b", "c"]).acquire().await.unwrap();
    held.renew().await.unwrap();
    let watches = |at: &usize| proxy.requests(*at).windows(5).any(|it| it == b"WATCH");
    let (transactions, others): (Vec<_>, Vec<_>) = (0..proxy.accepted()).partition(watches);
    assert_eq!(transactions.len(), 1);
    proxy.refuse();
    for other in others {
        proxy.cut(other);
    }
    let error = locks.lock(NAME).try_acquire().await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    held.renew().await.unwrap();
    proxy.forward();
    held.release().await.unwrap();
}

/// Transactions share one connection in turn, and some callers are dropped in the middle.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_transactions_do_not_disturb_each_other() {
    let server = RedisServer::start();
    let locks = connect_in(WATCH_MULTI, &server.url()).await;
    for round in 0..10 {
        let mut releasing = JoinSet::new();
        for number in 0..20 {
            let held = locks
                .lock(format!("{NAME}{number}"))
                .acquire()
                .await
                .unwrap();
            releasing.spawn(held.release());
        }
        if round % 2 == 0 {
            tokio::task::yield_now().await;
            releasing.abort_all();
            while releasing.join_next().await.is_some() {}
        } else {
            for released in releasing.join_all().await {
                released.unwrap();
            }
        }
        shut_down(&locks).await;
        assert_eq!(server.cli(&["DBSIZE"]).integer(), 0);
    }
}
