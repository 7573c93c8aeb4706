//! Servers with missing rights or risky settings, other libraries, and foreign code that panics.

use lock_core::LockManager;
use lock_core::dialect::{Dialect, ReleaseMethod};
use lock_core::telemetry::LockEvent;
use test_support::fixtures::{KEY, LONG, NAME, SOON, ms};
use test_support::{Direction, Neighbour, Proxy, RedisServer};
use tests::{connect, connect_to, one_attempt};

use super::Proof;

pub(super) async fn run(proof: &mut Proof) {
    restricted(proof).await;
    evicting(proof).await;
    repaired(proof).await;
    disturbed(proof).await;
    panicking(proof).await;
}

async fn restricted(proof: &mut Proof) {
    proof.begin();
    let server = RedisServer::start();
    let rules = [
        "ACL",
        "SETUSER",
        "app",
        "on",
        ">pw",
        "~*",
        "resetchannels",
        "+@all",
        "-script",
    ];
    assert_eq!(server.cli(&rules).error(), None);
    let locks = connect_to(&format!("redis://app:pw@{}", server.address())).await;
    proof.event("lock.server_restricted", "WARN").await;
    let _held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    let timed_out = locks.lock(NAME).wait(ms(300)).acquire().await;
    assert!(timed_out.unwrap_err().is_contended());
    proof.event("lock.notifications_off", "WARN").await;
}

async fn evicting(proof: &mut Proof) {
    proof.begin();
    let server = RedisServer::start();
    server.cli(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
    server.cli(&["CONFIG", "SET", "maxmemory", "100mb"]);
    let _locks = connect(&server).await;
    proof.event("lock.eviction_policy", "WARN").await;
}

/// A client of another library died between its two commands.
async fn repaired(proof: &mut Proof) {
    proof.begin();
    let server = RedisServer::start();
    let builder = one_attempt(LockManager::builder()).dialect(Dialect::SetnxExpire);
    let locks = builder.connect(&server.url()).await.unwrap();
    server.cli(&["SET", KEY, "somebody"]);
    let busy = locks.lock(NAME).try_acquire().await;
    assert!(matches!(busy, Ok(None)), "{busy:?}");
    proof.event("lock.expiry_repaired", "WARN").await;
}

/// Another client touches the key in each transaction.
async fn disturbed(proof: &mut Proof) {
    proof.begin();
    let server = RedisServer::start();
    let proxy = Proxy::in_front_of(&server);
    proxy.delay(Direction::ToClient, ms(4));
    let dialect = Dialect::SetNxPx {
        release: ReleaseMethod::WatchMulti,
    };
    let builder = one_attempt(LockManager::builder()).dialect(dialect);
    let locks = builder.connect(&proxy.url()).await.unwrap();
    let held = locks.lock(NAME).ttl(LONG).acquire().await.unwrap();
    let neighbour = Neighbour::of(&server, |connection| {
        connection.call(&["PEXPIRE", KEY, "60000"]).unwrap();
        std::thread::sleep(ms(1));
    });
    let _disturbed = held.renew().await;
    proof.event("lock.transaction_repeated", "DEBUG").await;
    drop(neighbour);
}

async fn panicking(proof: &mut Proof) {
    proof.begin();
    let server = RedisServer::start();
    let builder = one_attempt(LockManager::builder());
    let builder = builder.observer(|_: &LockEvent<'_>| panic!("the observer"));
    let locks = builder.connect(&server.url()).await.unwrap();
    let guard = locks.lock(NAME).wait(SOON).acquire().await.unwrap();
    guard.release().await.unwrap();
    proof.event("lock.panic_caught", "ERROR").await;
    proof.metric("distributed_lock.observer_panics", &[]).await;
}
