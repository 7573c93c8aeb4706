//! Release and renewal with WATCH and MULTI.

use std::sync::atomic::{AtomicBool, Ordering};

use lock_core::LockError;
use test_support::fixtures::{KEY, NAME, SOON, exists, ms};
use test_support::{Direction, Proxy, RedisServer, eventually_async};
use tests::{WATCH_MULTI, acquire_and_release, shut_down};
use tokio::task::JoinSet;

use super::connect_in;

/// Another client touches the key between the read and the write, and removes nothing. The library
/// repeats the transaction until it succeeds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_change_without_loss_is_retried() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    // A neighbour that touches the key without a pause disturbs every transaction.
    proxy.delay_round_trip(ms(4));
    let locks = connect_in(WATCH_MULTI, &proxy.url()).await;
    let touching = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut neighbour = server.connect().unwrap();
            let mut touches = 0_u32;
            while touching.load(Ordering::Relaxed) {
                neighbour.call(&["PEXPIRE", KEY, "60000"]).unwrap();
                // An occasional pause lets a transaction succeed.
                touches += 1;
                let pause = if touches.is_multiple_of(8) { 9 } else { 1 };
                std::thread::sleep(ms(pause));
            }
        });
        let monitor = server.monitor();
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                for _ in 0..10 {
                    let held = locks.lock(NAME).acquire().await.unwrap();
                    held.renew().await.unwrap();
                    held.release().await.unwrap();
                    assert!(!exists(&server, KEY));
                }
            });
        });
        touching.store(false, Ordering::Relaxed);
        let recording = monitor.stop();
        let tries = recording
            .from_clients()
            .filter(|command| command.name() == "EXEC");
        let tries = tries.count();
        assert!(
            tries > 20,
            "{tries} transactions for 20 changes: no transaction was disturbed"
        );
    });
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
