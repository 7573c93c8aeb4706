//! Renewals, and locks that are lost.

use lock_core::{LockError, LockManager, LockName, Renew};
use test_support::fixtures::{KEY, NAME, ms};
use test_support::{Proxy, RedisServer};
use tests::{connect, connect_with_timeout, lost_in_time};

use super::Proof;

const TEMPLATE: &str = "job:{losses}";

pub(super) async fn run(proof: &mut Proof) {
    let server = RedisServer::start();
    renewed(proof, &server).await;
    removed(proof, &server).await;
    expired(proof, &server).await;
    held_too_long(proof, &server).await;
    not_released(proof, &server).await;
}

async fn renewed(proof: &mut Proof, server: &RedisServer) {
    proof.begin();
    let proxy = Proxy::in_front_of(server);
    let locks = LockManager::connect(&proxy.url()).await.unwrap();
    let guard = locks
        .lock(LockName::from(NAME).with_template(TEMPLATE))
        .ttl(ms(600))
        .acquire()
        .await
        .unwrap();
    proof.event("lock.renewed", "DEBUG").await;
    proof
        .metric("distributed_lock.renewals", &[("outcome", "renewed")])
        .await;
    proof
        .metric("distributed_lock.command.duration", &[("command", "renew")])
        .await;
    let named = ("distributed_lock.name", TEMPLATE);
    proof.metric("distributed_lock.held.oldest", &[named]).await;
    // A renewal begins after a third of the ttl, and is late after a half.
    proxy.delay_round_trip(ms(180));
    proof.event("lock.renewal_late", "WARN").await;
    proof
        .metric("distributed_lock.renewals", &[("outcome", "late")])
        .await;
    proxy.delay_round_trip(ms(0));
    guard.release().await.unwrap();
}

async fn removed(proof: &mut Proof, server: &RedisServer) {
    proof.begin();
    let locks = connect(server).await;
    let guard = locks
        .lock(LockName::from(NAME).with_template(TEMPLATE))
        .ttl(ms(600))
        .acquire()
        .await
        .unwrap();
    server.cli(&["DEL", KEY]);
    lost_in_time(&guard).await;
    proof.event("lock.lost", "ERROR").await;
    proof
        .metric("distributed_lock.renewals", &[("outcome", "refused")])
        .await;
    let named = ("distributed_lock.name", TEMPLATE);
    proof
        .metric("distributed_lock.losses", &[named, ("reason", "removed")])
        .await;
    proof
        .metric(
            "distributed_lock.hold.duration",
            &[named, ("outcome", "lost")],
        )
        .await;
    assert!(guard.release().await.unwrap_err().is_lost());
    proof.event("lock.body_outlived_lease", "WARN").await;
}

async fn expired(proof: &mut Proof, server: &RedisServer) {
    proof.begin();
    let proxy = Proxy::in_front_of(server);
    let locks = connect_with_timeout(&proxy.url(), ms(100)).await;
    let guard = locks
        .lock(LockName::from(NAME).with_template(TEMPLATE))
        .ttl(ms(600))
        .acquire()
        .await
        .unwrap();
    proxy.refuse();
    proxy.cut_all();
    lost_in_time(&guard).await;
    proof.event("lock.renewal_failed", "WARN").await;
    proof
        .metric("distributed_lock.renewals", &[("outcome", "failed")])
        .await;
    proof
        .metric("distributed_lock.losses", &[("reason", "expired")])
        .await;
    let failed = guard.release().await;
    assert!(failed.is_err());
    proxy.forward();
}

async fn held_too_long(proof: &mut Proof, server: &RedisServer) {
    proof.begin();
    let locks = connect(server).await;
    let request = locks
        .lock(LockName::from("long").with_template(TEMPLATE))
        .ttl(ms(300))
        .max_hold(ms(700));
    let guard = request.acquire().await.unwrap();
    lost_in_time(&guard).await;
    proof
        .metric("distributed_lock.losses", &[("reason", "max_hold")])
        .await;
}

async fn not_released(proof: &mut Proof, server: &RedisServer) {
    proof.begin();
    let proxy = Proxy::in_front_of(server);
    let locks = connect_with_timeout(&proxy.url(), ms(100)).await;
    let request = locks
        .lock(LockName::from("release").with_template(TEMPLATE))
        .ttl(ms(1_000))
        .renew(Renew::Never);
    let guard = request.acquire().await.unwrap();
    proxy.refuse();
    proxy.cut_all();
    let failed = guard.release().await;
    assert!(matches!(failed, Err(LockError::Backend(_))));
    proof.event("lock.release_failed", "WARN").await;
    let failed = [
        ("distributed_lock.name", TEMPLATE),
        ("outcome", "release_failed"),
    ];
    proof
        .metric("distributed_lock.hold.duration", &failed)
        .await;
    // The background worker gives up when the lease has ended.
    let expired = [("operation", "release"), ("outcome", "expired")];
    proof.metric("distributed_lock.cleanups", &expired).await;
}
