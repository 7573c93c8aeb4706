//! Cut connections, lost replies, and servers without their scripts.

use std::sync::Arc;
use std::time::Duration;

use lock_core::LockManager;
use test_support::fixtures::{AT_ONCE, KEY, NAME, SOON, keys, kill_clients, ms};
use test_support::{Lost, Proxy, RedisServer, eventually_async};
use tests::{assert_nothing_left, granted, start_waiter};

use super::connect;
use super::turns::{Storm, take_turns};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_survives_a_cut_of_its_subscriber() {
    let server = RedisServer::start();
    let (first, second) = (connect(&server).await, connect(&server).await);
    let held = first.lock(NAME).acquire().await.unwrap();
    let waiting = start_waiter(&server, second.lock(NAME).wait(SOON), 1).await;
    assert_eq!(kill_clients(&server, "pubsub"), 1);
    // The release comes at once, while the waiter has no subscriber: the grant skips the waiter,
    // which then polls.
    held.release().await.unwrap();
    let held = granted(AT_ONCE, waiting).await;

    let waiting = start_waiter(&server, first.lock(NAME).wait(SOON), 1).await;
    assert!(kill_clients(&server, "pubsub") >= 1);
    eventually_async(SOON, async || {
        server.cli(&["PUBSUB", "CHANNELS"]).array().len() == 2
    })
    .await;
    held.release().await.unwrap();
    granted(AT_ONCE, waiting).await.release().await.unwrap();
    assert_nothing_left(&server, &first).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_survives_a_cut_connection() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    assert!(kill_clients(&server, "normal") >= 1);
    held.release().await.unwrap();
    assert_eq!(keys(&server), Vec::<String>::new());
    drop(locks.lock(NAME).acquire().await.unwrap());
    assert!(kill_clients(&server, "normal") >= 1);
    assert_nothing_left(&server, &locks).await;
}

/// Servers and load balancers close idle connections. The next call must not fail because of that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_closed_while_idle_is_replaced() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    for _ in 0..5 {
        assert!(kill_clients(&server, "normal") >= 1);
        let got = locks.lock(NAME).try_acquire().await.unwrap();
        got.expect("the lock is free").release().await.unwrap();
        assert!(kill_clients(&server, "normal") >= 1);
        let held = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
        held.release().await.unwrap();
    }
}

/// The proxy loses a command or its reply. The client sends the command again, and it takes effect
/// once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_commands_are_sent_again_and_take_effect_once() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let locks = LockManager::connect(&proxy.url()).await.unwrap();
    let monitor = server.monitor();
    let mut last = None;
    for lost in [Lost::Request, Lost::Reply, Lost::Request, Lost::Reply] {
        for wait in [None, Some(SOON)] {
            let request = locks.lock(NAME);
            let request = match wait {
                None => request,
                Some(wait) => request.wait(wait),
            };
            proxy.lose_next(lost, KEY);
            let held = request.acquire().await.unwrap();
            assert!(!proxy.is_armed(), "the proxy lost nothing");
            let token = held.fencing_token();
            assert!(token > last, "{token:?} after {last:?}");
            last = token;
            proxy.lose_next(lost, KEY);
            held.release().await.unwrap();
            assert!(!proxy.is_armed(), "the proxy lost nothing");
            assert_eq!(keys(&server), Vec::<String>::new());
        }
    }
    let recording = monitor.stop();
    let counted = recording.all().iter().filter(|c| c.name() == "INCR");
    assert_eq!(counted.count(), 8, "a lock was granted twice");
    assert_nothing_left(&server, &locks).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sections_survive_repeated_script_flushes() {
    let server = Arc::new(RedisServer::start());
    let managers = [connect(&server).await, connect(&server).await];
    let mut flusher = server.connect().unwrap();
    let storm = Storm::new(Duration::from_micros(200), move || {
        flusher.call(&["SCRIPT", "FLUSH"]).unwrap();
    });
    take_turns(&managers, 8, 10, Duration::ZERO).await;
    for _ in 0..50 {
        let held = managers[0].lock(NAME).acquire().await.unwrap();
        held.renew().await.unwrap();
        held.release().await.unwrap();
    }
    assert!(storm.rounds() > 20, "{}", storm.rounds());
    drop(storm);
    assert_nothing_left(&server, &managers[0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sections_survive_repeated_connection_cuts() {
    let server = Arc::new(RedisServer::start());
    let managers = [connect(&server).await, connect(&server).await];
    let mut admin = server.connect().unwrap();
    let mut kinds = ["pubsub", "normal", "normal"].into_iter().cycle();
    let storm = Storm::new(ms(20), move || {
        let kind = kinds.next().unwrap();
        // `CLIENT KILL` skips the connection that sends it by default.
        admin.call(&["CLIENT", "KILL", "TYPE", kind]).unwrap();
    });
    take_turns(&managers, 8, 10, ms(1)).await;
    assert!(storm.rounds() > 3, "{}", storm.rounds());
    drop(storm);
    for locks in &managers {
        assert_nothing_left(&server, locks).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_connection_selects_the_database_of_the_url() {
    let server = RedisServer::start();
    let locks = LockManager::connect(&format!("{}/3", server.url())).await;
    let locks = locks.unwrap();
    let mut third = server.connect().unwrap();
    third.call(&["SELECT", "3"]).unwrap();
    let mut exists_in_third = || third.call(&["EXISTS", KEY]).map(|there| there.integer());
    for _ in 0..2 {
        let held = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
        assert_eq!(exists_in_third().unwrap(), 1);
        assert_eq!(server.cli(&["EXISTS", KEY]).integer(), 0);
        // Closes all connections but the test's own: the lock connection, the background worker's
        // and the subscriber's.
        let ids = server.cli(&["CLIENT", "LIST"]);
        for client in ids.text().lines().filter(|line| line.contains(" db=3 ")) {
            let id = client.split(['=', ' ']).nth(1).unwrap();
            if !client.contains(" cmd=exists ") {
                server.cli(&["CLIENT", "KILL", "ID", id]);
            }
        }
        held.renew().await.ok();
        held.release().await.unwrap();
        assert_eq!(exists_in_third().unwrap(), 0);
    }
    assert_eq!(server.cli(&["DBSIZE"]).integer(), 0);
}
