//! The counters of events that no caller sees, next to the caller's result.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::telemetry::{CleanupOperation, LockEvent};
use lock_core::{LockError, LockManager, LossReason, Renew, distributed_lock};
use test_support::{Proxy, RedisServer, eventually_async};

use super::connect;

const SOON: Duration = Duration::from_secs(5);

#[distributed_lock(name = "a", manager = locks)]
async fn deletes_its_lock(locks: &LockManager, server: &RedisServer) -> Result<u8, LockError> {
    server.cli(&["DEL", "lock:a"]);
    Ok(7)
}

#[tokio::test]
async fn failed_release_is_counted_and_the_result_returned() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    assert_eq!(deletes_its_lock(&locks, &server).await.unwrap(), 7);
    let ran = locks.lock("a").run(async |_held| {
        server.cli(&["DEL", "lock:a"]);
        8
    });
    assert_eq!(ran.await.unwrap(), 8);
    assert_eq!(locks.stats().releases_failed, 2);

    // With a guard, the caller gets the error, and it is counted too.
    let guard = locks.lock("a").acquire().await.unwrap();
    server.cli(&["DEL", "lock:a"]);
    assert!(matches!(guard.release().await, Err(LockError::Lost { .. })));
    assert_eq!(locks.stats().releases_failed, 2);
}

#[tokio::test]
async fn loss_is_counted_once() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let every = Renew::Every(Duration::from_millis(20));
    let guard = locks.lock("a").renew(every).acquire().await.unwrap();
    server.cli(&["DEL", "lock:a"]);
    tokio::time::timeout(SOON, guard.lost()).await.unwrap();
    drop(guard);
    assert_eq!(locks.stats().lost, 1);
}

#[tokio::test]
async fn renewals_without_a_reply_are_counted() {
    let server = RedisServer::start();
    let locks = connect(&server).await;
    let every = Renew::Every(Duration::from_millis(20));
    let guard = locks.lock("a").renew(every).acquire().await.unwrap();
    server.kill9();
    eventually_async(SOON, async || locks.stats().renewals_failed > 1).await;
    assert!(!guard.is_lost(), "the lease of 30 s is not over");
}

#[tokio::test(start_paused = true)]
async fn lease_that_expired_unnoticed_is_counted_at_the_release() {
    let locks = LockManager::in_memory();
    let guard = locks.lock("a").renew(Renew::Never).acquire().await.unwrap();
    tokio::time::advance(Duration::from_secs(31)).await;
    drop(guard);
    assert_eq!(locks.stats().lost, 1);
}

/// The events of a manager, by their names.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<&'static str>>>);

impl Seen {
    async fn connect(&self, url: &str) -> LockManager {
        let seen = Arc::clone(&self.0);
        let builder = LockManager::builder().observer(move |event: &LockEvent<'_>| {
            let name = match *event {
                LockEvent::Lost { .. } => "lost",
                LockEvent::ReleaseFailed { .. } => "release failed",
                LockEvent::RenewalFailed { .. } => "renewal failed",
                LockEvent::CleanupEnded {
                    operation: CleanupOperation::Release,
                    ..
                } => "release ended",
                _ => return,
            };
            seen.lock().unwrap().push(name);
        });
        let builder = builder.command_timeout(Duration::from_secs(1));
        builder.connect(url).await.unwrap()
    }

    fn all(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().clone()
    }

    fn count(&self, name: &str) -> usize {
        self.all().iter().filter(|seen| **seen == name).count()
    }
}

/// The counter, the event and the reason of the guard agree, wherever the loss is found.
#[tokio::test]
async fn each_loss_has_one_count_one_event_and_a_reason() {
    let server = RedisServer::start();
    let seen = Seen::default();
    let locks = seen.connect(&server.url()).await;
    let assert_losses = |losses: usize| {
        assert_eq!(seen.count("lost"), losses);
        assert_eq!(locks.stats().lost, losses as u64);
    };
    let request = || locks.lock("a").renew(Renew::Never);

    // The reply to the release says that another owner has the key, or none.
    let guard = request().acquire().await.unwrap();
    let watch = guard.watch();
    server.cli(&["DEL", "lock:a"]);
    let error = guard.release().await.unwrap_err();
    assert_losses(1);
    assert_eq!(watch.loss_reason(), Some(LossReason::Removed));
    let LockError::Lost { reason, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(*reason, LossReason::Removed);
    assert!(error.to_string().contains("its key was removed"), "{error}");

    // The same after a body.
    request()
        .run(async |_| server.cli(&["DEL", "lock:a"]))
        .await
        .unwrap();
    assert_losses(2);

    // The lease ends, and the release finds no key.
    let guard = request().ttl(Duration::from_millis(100));
    let guard = guard.acquire().await.unwrap();
    guard.lost().await;
    assert_eq!(guard.loss_reason(), Some(LossReason::Expired));
    eventually_async(SOON, async || {
        server.cli(&["EXISTS", "lock:a"]).integer() == 0
    })
    .await;
    let error = guard.release().await.unwrap_err();
    assert!(error.to_string().contains("its lease ended"), "{error}");
    assert_losses(3);

    // A renewal is refused.
    let guard = locks.lock("a").acquire().await.unwrap();
    server.cli(&["DEL", "lock:a"]);
    assert!(guard.renew().await.unwrap_err().is_lost());
    drop(guard);
    assert_losses(4);
    locks.shutdown().await.unwrap();
    assert_eq!(seen.count("release failed"), 0);
}

/// The caller's release fails, and then that of the background worker, many times.
#[tokio::test]
async fn release_that_fails_is_reported_once() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let ttl = Duration::from_secs(1);
    for is_dropped in [false, true] {
        let seen = Seen::default();
        let locks = seen.connect(&proxy.url()).await;
        let guard = locks.lock("a").ttl(ttl).renew(Renew::Never);
        let guard = guard.acquire().await.unwrap();
        proxy.refuse();
        proxy.cut_all();
        if is_dropped {
            drop(guard);
        } else {
            guard.release().await.unwrap_err();
        }
        eventually_async(SOON, async || seen.count("release ended") == 1).await;
        assert_eq!(seen.all(), ["release failed", "release ended"]);
        proxy.forward();
    }
}

/// No event of a lock follows its loss.
#[tokio::test]
async fn release_of_a_lost_lock_that_fails_is_not_reported() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let seen = Seen::default();
    let locks = seen.connect(&proxy.url()).await;
    let ttl = Duration::from_millis(300);
    let guard = locks.lock("a").ttl(ttl).renew(Renew::Never);
    let guard = guard.acquire().await.unwrap();
    proxy.refuse();
    proxy.cut_all();
    guard.lost().await;
    guard.release().await.unwrap_err();
    eventually_async(SOON, async || seen.count("release ended") == 1).await;
    assert_eq!(seen.all(), ["lost", "release ended"]);
}

/// A renewal is in flight when the release begins, and gets no reply.
#[tokio::test]
async fn renewal_that_fails_after_the_release_began_is_not_reported() {
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    let seen = Seen::default();
    let locks = seen.connect(&proxy.url()).await;
    let every = Renew::Every(Duration::from_millis(20));
    let guard = locks.lock("a").renew(every).acquire().await.unwrap();
    proxy.black_hole();
    // Longer than a renewal takes to begin, and shorter than its time limit.
    let silent = Duration::from_millis(60);
    let is_silent = || locks.health().last_reply.is_some_and(|at| at > silent);
    eventually_async(SOON, async || is_silent()).await;
    assert_eq!(seen.all(), [""; 0]);
    guard.release().await.unwrap_err();
    eventually_async(SOON, async || seen.count("release failed") == 1).await;
    assert_eq!(seen.count("renewal failed"), 0);
    assert_eq!(locks.stats().renewals_failed, 0);
}
