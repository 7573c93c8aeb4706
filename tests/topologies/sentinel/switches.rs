//! Calls and waiters that are under way when the Sentinels name another primary.

use test_support::fixtures::{LONG, SOON};

use super::*;

const KEY: &str = "lock:order:42";
const QUEUE: &str = "{lock:order:42}:q";

/// The old primary is frozen. Its callers need not wait for it, and the error says what to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_at_the_old_primary_ends_at_the_switch_and_says_why() {
    let service = SentinelService::start();
    let builder = one_attempt(LockManager::builder()).command_timeout(FAILOVER * 2);
    let locks = builder.connect(&service.url()).await.unwrap();
    acquired(&locks, NAME).await.release().await.unwrap();
    let old = service.primary();
    old.stop();
    let calling = tokio::spawn(locks.lock(NAME).try_acquire());
    service.wait_for_switch(old.port());
    let called = tokio::time::timeout(FAILOVER, calling).await.unwrap();
    let error = called.unwrap().unwrap_err();
    assert_eq!(backend_error(&error), BackendErrorKind::NotPrimary);
    assert!(error.is_retryable());
    let text = error.to_string();
    assert!(text.contains(&old.address().to_string()), "{text}");
    assert!(text.contains("not used as the primary any more"), "{text}");
    assert!(text.contains("try again"), "{text}");
    acquired(&locks, NAME).await.release().await.unwrap();
    old.cont();
}

/// The old primary is cut off from the Sentinels and from its replicas, and serves its clients as before. So no
/// connection breaks, and the replicas have the lock and not its queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_queues_again_at_the_new_primary_and_gets_the_lock_there() {
    let service = SentinelService::start();
    let locks = connect(&service.url()).await;
    let request = locks.lock(NAME).ttl(LONG);
    let held = request.acquire().await.unwrap();
    let token = fencing_token(&held);
    let old = service.primary();
    let replicas = || {
        service
            .servers()
            .iter()
            .filter(|it| it.port() != old.port())
    };
    eventually_async(SOON, async || {
        replicas().all(|it| it.cli(&["EXISTS", KEY]).integer() == 1)
    })
    .await;
    service.isolate(old);
    let queued = |server: &RedisServer| server.cli(&["ZCARD", QUEUE]).integer();
    let waiter = tokio::spawn(locks.lock(NAME).wait(FAILOVER * 2).acquire());
    eventually_async(SOON, async || queued(old) == 1).await;
    assert!(replicas().all(|it| queued(it) == 0));
    service.wait_for_switch(old.port());
    let new = service.primary();
    eventually_async(SOON, async || queued(new) == 1).await;
    // Its notifications come from there too.
    let channels = || new.cli(&["PUBSUB", "CHANNELS", "lk1:*"]).array().len();
    eventually_async(SOON, async || channels() == 1).await;
    assert!(!waiter.is_finished());
    held.release().await.unwrap();
    let next = tokio::time::timeout(SOON, waiter).await.unwrap();
    let next = next.unwrap().unwrap();
    assert!(fencing_token(&next) > token);
    assert_eq!(new.cli(&["EXISTS", KEY]).integer(), 1);
    next.release().await.unwrap();
    assert_eq!(new.cli(&["EXISTS", KEY]).integer(), 0);
}
