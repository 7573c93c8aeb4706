//! A Redis Cluster: slots that move while locks are held and waited for, failovers, and tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lock_core::dialect::{Dialect, RedissonLock, ReleaseMethod};
use lock_core::error::BackendErrorKind;
use lock_core::{LockError, LockGuard, LockManager};
use test_support::fixtures::SOON;
use test_support::{Failover, RedisCluster, RedisServer, Reply, eventually_async};
use tests::{fencing_token, one_attempt};
use topologies::connect;

mod announced;
mod atomic_moves;
mod clocks;
mod down;
mod kinds;
mod logins;
mod membership;
mod nodes;
mod open_slots;
mod partition;
mod redisson;
mod releases;
mod sets;
mod subscriptions;

const NAME: &str = "order:42";
const KEY: &str = "lock:order:42";
/// Bound on a failover, on a loaded machine.
const FAILOVER: Duration = Duration::from_secs(30);

/// Returns a primary that does not own the slot of [`KEY`].
fn other_primary(cluster: &RedisCluster) -> &RedisServer {
    primary_without(cluster, KEY)
}

/// Returns a primary that does not own the slot of this key.
fn primary_without<'a>(cluster: &'a RedisCluster, key: &str) -> &'a RedisServer {
    let owner = cluster.owner_of(key).port();
    let is_other =
        |it: &&RedisServer| it.port() != owner && it.cli(&["ROLE"]).array()[0].text() == "master";
    cluster
        .nodes()
        .iter()
        .find(is_other)
        .expect("a cluster has several primaries")
}

/// Reads a key at a replica.
fn read_replica(replica: &RedisServer, key: &str) -> Reply {
    let mut connection = replica.connect().unwrap();
    connection.call(&["READONLY"]).unwrap();
    connection.call(&["GET", key]).unwrap()
}

async fn acquired(locks: &LockManager) -> LockGuard {
    let mut guard = None;
    eventually_async(FAILOVER, async || {
        guard = locks.lock(NAME).try_acquire().await.ok().flatten();
        guard.is_some()
    })
    .await;
    guard.expect("the condition holds")
}

/// Starts a waiter, and returns it when it is in the queue.
async fn start_waiter(
    locks: &LockManager,
) -> tokio::task::JoinHandle<Result<LockGuard, LockError>> {
    let waiter = tokio::spawn(locks.lock(NAME).wait(FAILOVER).acquire());
    eventually_async(SOON, async || {
        locks
            .admin()
            .inspect(NAME)
            .await
            .is_ok_and(|seen| seen.waiters_total == 1)
    })
    .await;
    waiter
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn held_lock_moves_with_its_slot() {
    let cluster = RedisCluster::start();
    let locks = connect(&cluster.url()).await;
    let held = locks.lock(NAME).acquire().await.unwrap();
    let token = fencing_token(&held);
    for way in cluster.slot_moves() {
        let to = other_primary(&cluster);
        cluster.move_slot_by(*way, KEY, to);
        held.renew().await.unwrap();
        assert_eq!(to.cli(&["EXISTS", KEY]).integer(), 1);
    }
    assert!(locks.lock(NAME).try_acquire().await.unwrap().is_none());
    held.release().await.unwrap();
    let next = locks.lock(NAME).acquire().await.unwrap();
    assert!(fencing_token(&next) > token);
}

/// Its subscription ends with the move, and it subscribes at the new owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_gets_the_lock_after_its_slot_has_moved() {
    let cluster = RedisCluster::start();
    let locks = connect(&cluster.url()).await;
    for way in cluster.slot_moves().repeat(2) {
        let held = locks.lock(NAME).acquire().await.unwrap();
        let waiter = start_waiter(&locks).await;
        cluster.move_slot_by(way, KEY, other_primary(&cluster));
        held.release().await.unwrap();
        let next = tokio::time::timeout(SOON, waiter).await.unwrap();
        next.unwrap().unwrap().release().await.unwrap();
    }
}

/// While the slot is open, its node runs no script with several keys. A holder keeps its lock, can give it
/// up at once, and callers are told why they wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_slot_stalls_acquires_only() {
    let cluster = RedisCluster::start();
    let builder = one_attempt(LockManager::builder()).command_timeout(Duration::from_millis(500));
    let locks = builder.connect(&cluster.url()).await.unwrap();
    for moves_key in [false, true] {
        let held = locks.lock(NAME).acquire().await.unwrap();
        let to = other_primary(&cluster);
        cluster.begin_move(KEY, to);
        if moves_key {
            cluster.move_keys(&[KEY], to);
        }
        held.renew().await.unwrap();
        let began = Instant::now();
        let error = locks.lock(NAME).acquire().await.unwrap_err();
        let LockError::Backend(backend) = &error else {
            panic!("{error}");
        };
        assert_eq!(backend.kind(), BackendErrorKind::SlotMoving, "{error}");
        assert!(error.is_retryable());
        assert!(began.elapsed() < Duration::from_secs(2));
        held.renew().await.unwrap();
        // The release is confirmed after the move, but the key is free at once.
        let _moving = held.release().await;
        assert!(is_free_in_open_slot(&cluster, to));
        cluster.end_move(KEY, to);
        acquired(&locks).await.release().await.unwrap();
    }
}

/// Some keys of the lock have moved and some have not, in all six ways: a renewal finds the lock, a release
/// frees it at once, and the waiter gets it after the move.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_works_in_each_half_state_of_its_keys() {
    let cluster = RedisCluster::start();
    let locks = connect(&cluster.url()).await;
    let keys = [KEY, "{lock:order:42}:f", "{lock:order:42}:q"];
    for moved in 1..7_u8 {
        let held = locks.lock(NAME).acquire().await.unwrap();
        let token = fencing_token(&held);
        let waiter = start_waiter(&locks).await;
        let (from, to) = (cluster.owner_of(KEY), other_primary(&cluster));
        for key in keys {
            assert_eq!(from.cli(&["EXISTS", key]).integer(), 1, "{key}");
        }
        cluster.begin_move(KEY, to);
        let chosen = keys.iter().enumerate();
        let chosen = chosen.filter(|(at, _)| moved & (1 << at) != 0);
        let chosen: Vec<_> = chosen.map(|(_, key)| *key).collect();
        cluster.move_keys(&chosen, to);
        held.renew().await.unwrap();
        assert!(!held.is_lost(), "{chosen:?} have moved");
        let releasing = tokio::spawn(held.release());
        eventually_async(SOON, async || is_free_in_open_slot(&cluster, to)).await;
        assert!(!waiter.is_finished(), "{chosen:?} have moved");
        cluster.end_move(KEY, to);
        let next = tokio::time::timeout(FAILOVER, waiter).await.unwrap();
        let next = next.unwrap().unwrap();
        assert!(fencing_token(&next) > token);
        let released = releasing.await.unwrap();
        assert!(
            released.as_ref().err().is_none_or(LockError::is_retryable),
            "{released:?}"
        );
        next.release().await.unwrap();
    }
}

/// Returns whether neither node of an open slot has the key of the lock.
fn is_free_in_open_slot(cluster: &RedisCluster, to: &RedisServer) -> bool {
    let mut connection = to.connect().unwrap();
    connection.call(&["ASKING"]).unwrap();
    let at_target = connection.call(&["EXISTS", KEY]).unwrap();
    // A key that has moved is an error at its source.
    at_target.integer() == 0 && cluster.owner_of(KEY).cli(&["EXISTS", KEY]) != Reply::Integer(1)
}

/// Clients work on one lock while its slot goes to and fro.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_is_exclusive_while_its_slot_moves_to_and_fro() {
    let cluster = RedisCluster::start();
    let (held_by, last_token) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = tokio::task::JoinSet::new();
    for client in 1..=4 {
        let locks = connect(&cluster.url()).await;
        let (held_by, last_token) = (Arc::clone(&held_by), Arc::clone(&last_token));
        let stop = Arc::clone(&stop);
        clients.spawn(async move {
            let mut grants = 0_u32;
            while !stop.load(Ordering::SeqCst) {
                let Ok(held) = locks.lock(NAME).wait(SOON).acquire().await else {
                    continue;
                };
                assert_eq!(held_by.swap(client, Ordering::SeqCst), 0, "two holders");
                let token = fencing_token(&held);
                assert!(last_token.swap(token, Ordering::SeqCst) < token);
                tokio::time::sleep(Duration::from_millis(1)).await;
                held_by.store(0, Ordering::SeqCst);
                held.release().await.ok();
                grants += 1;
            }
            grants
        });
    }
    for way in cluster.slot_moves().repeat(10) {
        cluster.move_slot_by(way, KEY, other_primary(&cluster));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    stop.store(true, Ordering::SeqCst);
    let grants = clients.join_all().await;
    assert!(grants.iter().all(|grants| *grants > 0), "{grants:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_failover_keeps_locks_usable_and_tokens_growing() {
    let cluster = RedisCluster::start();
    let locks = connect(&cluster.url()).await;
    let mut token = 0;
    for kind in [Failover::Agreed, Failover::Force, Failover::Takeover] {
        let held = acquired(&locks).await;
        assert!(fencing_token(&held) > token, "{kind:?}");
        token = fencing_token(&held);
        held.release().await.unwrap();
        let replica = cluster.replica_of(cluster.owner_of(KEY));
        cluster.failover(KEY, replica, kind);
        cluster.wait_stable();
    }
    assert!(fencing_token(&acquired(&locks).await) > token);
}

/// The first owner comes back without the last steps of the counter, and an idle manager has an old connection to
/// it, from before both failovers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_when_a_node_becomes_the_owner_again() {
    let cluster = RedisCluster::start();
    let (busy, idle) = (connect(&cluster.url()).await, connect(&cluster.url()).await);
    for locks in [&busy, &idle] {
        locks
            .lock(NAME)
            .acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    let first = cluster.owner_of(KEY);
    let second = cluster.replica_of(first);
    cluster.failover(KEY, second, Failover::Agreed);
    acquired(&busy).await.release().await.unwrap();
    let followed = cluster.replica_of(second);
    assert_eq!(followed.port(), first.port());
    let counter = second.cli(&["GET", "{lock:order:42}:f"]);
    eventually_async(SOON, async || {
        read_replica(first, "{lock:order:42}:f") == counter
    })
    .await;
    cluster.cut_replication(second);
    let mut last = 0;
    for _ in 0..5 {
        let held = acquired(&busy).await;
        last = fencing_token(&held);
        held.release().await.unwrap();
    }
    // Longer than a manager relies on the epoch that a node told.
    tokio::time::sleep(Duration::from_secs(3)).await;
    cluster.failover(KEY, first, Failover::Takeover);
    let held = acquired(&idle).await;
    assert!(
        fencing_token(&held) > last,
        "{} after {last}",
        fencing_token(&held)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_survives_the_death_of_its_node() {
    let cluster = RedisCluster::start();
    let locks = connect(&cluster.url()).await;
    let held = locks
        .lock(NAME)
        .ttl(Duration::from_secs(3))
        .acquire()
        .await
        .unwrap();
    let waiter = start_waiter(&locks).await;
    let owner = cluster.owner_of(KEY);
    owner.kill9();
    drop(held);
    let next = tokio::time::timeout(FAILOVER, waiter).await.unwrap();
    next.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_node_of_the_url_is_enough() {
    let cluster = RedisCluster::start();
    let seed = cluster.replica_of(cluster.owner_of(KEY)).address();
    let locks = connect(&format!("redis+cluster://127.0.0.1:1,{seed}")).await;
    acquired(&locks).await.release().await.unwrap();
}

/// The manager has learned of the other nodes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_of_the_url_may_all_go() {
    let cluster = RedisCluster::start();
    // A primary, and the replica of another one: their shards keep a node each.
    let (first, other) = (cluster.owner_of(KEY), other_primary(&cluster));
    let second = cluster.replica_of(other);
    let url = format!("redis+cluster://{},{}", first.address(), second.address());
    let locks = connect(&url).await;
    acquired(&locks).await.release().await.unwrap();
    let heir = cluster.replica_of(first);
    for node in [second, first] {
        node.kill9();
    }
    cluster.wait_for_owner(KEY, heir);
    acquired(&locks).await.release().await.unwrap();
    cluster.move_slot(KEY, other);
    acquired(&locks).await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_dialects_work_in_a_cluster() {
    let cluster = RedisCluster::start();
    let locks = connect(&cluster.url()).await;
    for dialect in [
        Dialect::SetnxExpire,
        Dialect::LuaSetnxExpire,
        Dialect::SetNxPx {
            release: ReleaseMethod::Script,
        },
        Dialect::SetNxPx {
            release: ReleaseMethod::WatchMulti,
        },
        Dialect::DeadlineGetset,
        Dialect::Redisson {
            lock: RedissonLock::Plain,
        },
        Dialect::Redisson {
            lock: RedissonLock::Fenced,
        },
    ] {
        let request = || locks.lock(NAME).dialect(dialect);
        let held = request().acquire().await.unwrap();
        assert!(request().try_acquire().await.unwrap().is_none());
        cluster.move_slot(KEY, other_primary(&cluster));
        held.renew().await.unwrap();
        held.release().await.unwrap();
        let next = request().acquire().await.unwrap();
        next.release().await.unwrap();
    }
}

#[tokio::test]
async fn wrong_addresses_are_named() {
    let cluster = RedisCluster::start();
    let server = RedisServer::start();
    let node = cluster.nodes()[0].address();
    for (url, kind, words) in [
        (
            format!("redis://{node}"),
            BackendErrorKind::Unsupported,
            "use redis+cluster://",
        ),
        (
            format!("redis://{node}/1"),
            BackendErrorKind::Unsupported,
            "use redis+cluster://",
        ),
        (
            format!("redis+cluster://{}", server.address()),
            BackendErrorKind::Unsupported,
            "use redis://",
        ),
        (
            "redis+cluster://127.0.0.1:1".to_owned(),
            BackendErrorKind::Unreachable,
            "connection refused",
        ),
    ] {
        let error = LockManager::connect(&url).await.unwrap_err();
        let LockError::Backend(backend) = &error else {
            panic!("{url}: {error}");
        };
        if url.ends_with("/1") && backend.kind() == BackendErrorKind::InvalidUrl {
            // Valkey 9 has numbered databases in clusters, and this one has a single one.
            assert!(error.to_string().contains("no database 1"), "{error}");
            continue;
        }
        assert_eq!(backend.kind(), kind, "{url}: {error}");
        assert!(error.to_string().contains(words), "{url}: {error}");
    }
}
