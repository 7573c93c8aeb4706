//! Locks that are about to be lost, while the server doesn't answer.

use std::time::{Duration, Instant};

use lock_core::{LockManager, LossReason};
use test_support::fixtures::{NAME, SOON, ms};
use test_support::{Proxy, RedisServer, eventually_async};

use super::{connect, connect_with};

/// The risk begins 1.5 s after the last renewal, which is a third of it old at most.
const TTL: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_is_at_risk_while_the_server_is_silent() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let held = locks.lock(NAME).ttl(TTL).acquire().await.unwrap();
    let set = locks.lock_all(["a", "b"]).ttl(TTL).acquire().await.unwrap();
    for _ in 0..2 {
        let stopped = Instant::now();
        server.stop();
        tokio::join!(held.at_risk(), set.at_risk());
        let elapsed = stopped.elapsed();
        assert!(elapsed > ms(300) && elapsed < ms(2_500), "{elapsed:?}");
        assert!(held.is_at_risk() && set.is_at_risk() && !held.is_lost());
        assert!(held.remaining() < TTL / 2);
        server.cont();
        eventually_async(SOON, async || !held.is_at_risk() && !set.is_at_risk()).await;
        assert!(held.remaining() > TTL / 2 && set.remaining() > TTL / 2);
    }
    let watch = held.watch();
    let warned = tokio::spawn(watch.at_risk());
    server.stop();
    warned.await.unwrap();
    assert!(!watch.is_lost());
    watch.lost().await;
    assert!(!watch.is_at_risk());
    assert_eq!(watch.loss_reason(), Some(LossReason::Expired));
    server.cont();
}

/// The command timeout is longer than the lease, so the renewal is on its way until the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_without_a_reply_is_overdue() {
    let server = RedisServer::start();
    let builder = LockManager::builder().command_timeout(Duration::from_secs(60));
    let locks = connect_with(builder, &server.url()).await;
    let held = locks.lock(NAME).ttl(TTL).acquire().await.unwrap();
    server.stop();
    held.at_risk().await;
    assert!(held.is_at_risk() && !held.is_lost());
    assert_eq!(locks.stats().renewals_failed, 0);
    server.cont();
    eventually_async(SOON, async || !held.is_at_risk()).await;
    held.release().await.unwrap();
}

/// Each attempt fails after a short time, and is repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_connections_are_a_risk() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let builder = LockManager::builder().command_timeout(ms(200));
    let locks = connect_with(builder, &proxy.url()).await;
    let held = locks.lock(NAME).ttl(TTL).acquire().await.unwrap();
    proxy.refuse();
    proxy.cut_all();
    held.at_risk().await;
    assert!(held.is_at_risk() && locks.stats().renewals_failed > 0);
    proxy.forward();
    eventually_async(SOON, async || !held.is_at_risk()).await;
    held.release().await.unwrap();
}
