//! Callers that get a lock, wait for it, or give up.

use lock_core::{LockError, LockManager, LockName, distributed_lock};
use test_support::fixtures::{LONG, NAME, QUEUE, SOON, ms};
use test_support::{Proxy, RedisServer, eventually_async};
use tests::{connect, connect_with_timeout, shut_down, start_waiter};

use super::Proof;
use crate::subscriber;

const TEMPLATE: &str = "job:{contention}";
const ACQUIRE: &str = "distributed_lock.acquire.duration";

pub(super) async fn run(proof: &mut Proof) {
    let server = RedisServer::start();
    handed_over(proof, &server).await;
    held_and_released(proof, &server).await;
    waited(proof, &server).await;
    differed(proof, &server).await;
    skipped(proof, &server).await;
    completed(proof, &server).await;
    pinged(proof, &server).await;
    unconfirmed(proof, &server).await;
    unreachable(proof).await;
}

async fn held_and_released(proof: &mut Proof, server: &RedisServer) {
    proof.begin();
    let locks = connect(server).await;
    let guard = locks
        .lock(LockName::from(NAME).with_template(TEMPLATE))
        .acquire()
        .await
        .unwrap();
    let named = ("distributed_lock.name", TEMPLATE);
    proof.event("lock.granted", "DEBUG").await;
    proof
        .metric(ACQUIRE, &[named, ("outcome", "acquired")])
        .await;
    proof
        .metric("distributed_lock.held", &[named, ("kind", "exclusive")])
        .await;
    guard.release().await.unwrap();
    proof.event("lock.released", "DEBUG").await;
    let released = [named, ("outcome", "released")];
    proof
        .metric("distributed_lock.hold.duration", &released)
        .await;
    for command in ["acquire", "release"] {
        let labels = [("command", command), ("server.address", "127.0.0.1")];
        proof
            .metric("distributed_lock.command.duration", &labels)
            .await;
    }
}

async fn handed_over(proof: &mut Proof, server: &RedisServer) {
    proof.begin();
    let locks = connect(server).await;
    let name = || LockName::from("handed-over").with_template(TEMPLATE);
    let guard = locks.lock(name()).acquire().await.unwrap();
    let ticket = guard.into_ticket(ms(30_000)).await.unwrap();
    proof.event("lock.ticket_made", "DEBUG").await;
    let named = ("distributed_lock.name", TEMPLATE);
    let by_ticket = [named, ("outcome", "ticket")];
    proof
        .metric("distributed_lock.hold.duration", &by_ticket)
        .await;
    let resumed = locks.lock(name()).resume(ticket).await.unwrap();
    resumed.release().await.unwrap();
}

/// Callers that give different numbers of permits are counted each time, and warned about once.
async fn differed(proof: &mut Proof, server: &RedisServer) {
    proof.begin();
    let locks = connect(server).await;
    let request = |permits| {
        locks
            .lock(LockName::from(NAME).with_template(TEMPLATE))
            .permits(permits)
    };
    let held = request(4).ttl(LONG).acquire().await.unwrap();
    for _ in 0..2 {
        let timed_out = request(8).wait(ms(50)).acquire().await;
        assert!(matches!(timed_out, Err(LockError::Timeout { .. })));
    }
    proof.event("lock.kind_mismatch", "WARN").await;
    let named = [("distributed_lock.name", TEMPLATE)];
    proof
        .metric("distributed_lock.kind_mismatches", &named)
        .await;
    let events = subscriber::events(|event| event.name == "lock.kind_mismatch");
    assert_eq!(events.len(), 1);
    held.release().await.unwrap();
}

async fn waited(proof: &mut Proof, server: &RedisServer) {
    proof.begin();
    let locks = connect(server).await;
    let request = || {
        locks
            .lock(LockName::from(NAME).with_template(TEMPLATE))
            .ttl(LONG)
    };
    let held = request().acquire().await.unwrap();
    assert!(request().try_acquire().await.unwrap().is_none());
    proof.metric(ACQUIRE, &[("outcome", "contended")]).await;

    let timed_out = request().wait(ms(50)).acquire().await;
    assert!(matches!(timed_out, Err(LockError::Timeout { .. })));
    proof.metric(ACQUIRE, &[("outcome", "timeout")]).await;
    proof.event("lock.held_by_this_process", "DEBUG").await;

    let cancelled = start_waiter(server, request().wait(SOON), 1).await;
    proof.event("lock.queued", "DEBUG").await;
    proof
        .metric("distributed_lock.waiting", &[("kind", "exclusive")])
        .await;
    cancelled.abort();
    proof.metric(ACQUIRE, &[("outcome", "cancelled")]).await;
    proof.event("lock.acquire_cancelled", "DEBUG").await;
    let confirmed = [("operation", "cancel"), ("outcome", "confirmed")];
    proof.metric("distributed_lock.cleanups", &confirmed).await;
    proof
        .metric(
            "distributed_lock.command.duration",
            &[("command", "cancel")],
        )
        .await;

    let granted = start_waiter(server, request().wait(SOON), 1).await;
    held.release().await.unwrap();
    drop(granted.await.unwrap().unwrap());
    let used = [("kind", "grant"), ("outcome", "used")];
    proof.metric("distributed_lock.notifications", &used).await;
    let confirmed = [("operation", "release"), ("outcome", "confirmed")];
    proof.metric("distributed_lock.cleanups", &confirmed).await;
    shut_down(&locks).await;
}

#[distributed_lock(name = "skipped:{id}", on_contended = skip, manager = locks)]
async fn skipped_job(locks: &LockManager, id: u32) -> Result<Option<u32>, LockError> {
    Ok(Some(id))
}

async fn skipped(proof: &mut Proof, server: &RedisServer) {
    proof.begin();
    let locks = connect(server).await;
    let _held = locks.lock("skipped:7").acquire().await.unwrap();
    assert_eq!(skipped_job(&locks, 7).await.unwrap(), None);
    proof.event("lock.skipped", "DEBUG").await;
}

#[distributed_lock(name = "completed:{id}", once_per = "1h", on_contended = skip, manager = locks)]
async fn completed_job(locks: &LockManager, id: u32) -> Result<Option<u32>, LockError> {
    Ok(Some(id))
}

async fn completed(proof: &mut Proof, server: &RedisServer) {
    proof.begin();
    let locks = connect(server).await;
    assert_eq!(completed_job(&locks, 7).await.unwrap(), Some(7));
    proof.event("lock.completed", "DEBUG").await;
    let named = [("distributed_lock.name", "completed:{id}")];
    proof.metric("distributed_lock.last_success", &named).await;
    assert_eq!(completed_job(&locks, 7).await.unwrap(), None);
    proof.event("lock.skipped", "DEBUG").await;
    let done = [("outcome", "done")];
    proof
        .metric("distributed_lock.acquire.duration", &done)
        .await;
}

async fn pinged(proof: &mut Proof, server: &RedisServer) {
    proof.begin();
    connect(server).await.ping().await.unwrap();
    proof
        .metric("distributed_lock.command.duration", &[("command", "ping")])
        .await;
}

/// The server executes an acquire, and neither its reply nor the cancel gets through.
async fn unconfirmed(proof: &mut Proof, server: &RedisServer) {
    proof.begin();
    let proxy = Proxy::in_front_of(server);
    let locks = connect_with_timeout(&proxy.url(), ms(100)).await;
    drop(locks.lock(NAME).acquire().await.unwrap());
    shut_down(&locks).await;
    proxy.black_hole();
    let request = locks
        .lock(LockName::from(NAME).with_template(TEMPLATE))
        .ttl(ms(3_000));
    let failed = request.acquire().await;
    assert!(matches!(failed, Err(LockError::Backend(_))));
    proof.event("lock.acquire_unconfirmed", "DEBUG").await;
    proof
        .metric(
            ACQUIRE,
            &[("outcome", "error"), ("error.type", "timed_out")],
        )
        .await;
    proof.metric("distributed_lock.cleanups.open", &[]).await;
    proof.event("lock.command_failed", "DEBUG").await;
    proof.event("lock.acquire_unconfirmed", "WARN").await;
    proxy.forward();
    proof.event("lock.acquire_cancelled", "WARN").await;
    shut_down(&locks).await;
    eventually_async(SOON, async || server.cli(&["EXISTS", QUEUE]).integer() == 0).await;
}

/// No connection can be made.
async fn unreachable(proof: &mut Proof) {
    proof.begin();
    let server = RedisServer::start();
    let locks = connect_with_timeout(&server.url(), ms(200)).await;
    server.kill9();
    let failed = locks
        .lock(LockName::from(NAME).with_template(TEMPLATE))
        .acquire()
        .await;
    assert!(matches!(failed, Err(LockError::Backend(_))));
    proof
        .metric(
            ACQUIRE,
            &[("outcome", "error"), ("error.type", "unreachable")],
        )
        .await;
}
