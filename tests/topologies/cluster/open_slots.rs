//! Waits that fall into a slot whose move does not end.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::error::BackendErrorKind;
use lock_core::telemetry::LockEvent;
use lock_core::{LockError, LockGuard, LockManager};
use test_support::fixtures::SOON;
use test_support::{RedisCluster, eventually_async};
use tests::{in_time, one_attempt};
use topologies::{connect, use_when_connected};

use super::{KEY, NAME, acquired, other_primary};

/// The holder renews several times while the others wait.
const TTL: Duration = Duration::from_secs(1);
const WAIT: Duration = Duration::from_secs(3);

/// The wait ended, and not with the lock.
fn assert_typed(waited: Result<LockGuard, LockError>, may_time_out: bool) {
    let error = waited.expect_err("the lock is held");
    let is_moving = matches!(&error, LockError::Backend(backend)
        if backend.kind() == BackendErrorKind::SlotMoving);
    let is_timeout = matches!(error, LockError::Timeout { .. });
    assert!(is_moving || may_time_out && is_timeout, "{error:?}");
    assert!(error.is_retryable() || is_timeout, "{error:?}");
}

/// One caller is in the queue when the slot opens, and another one comes later. Both learn at the end of their wait
/// that they did not get the lock, and leave nothing behind.
async fn waits_end_and_the_holder_stays(moves_key: bool) {
    let cluster = RedisCluster::start();
    let locks = connect(&cluster.url()).await;
    let held = locks.lock(NAME).ttl(TTL).acquire().await.unwrap();
    let request = || locks.lock(NAME).wait(WAIT).acquire();
    let early = tokio::spawn(in_time(WAIT, request()));
    let is_queued = async || locks.admin().inspect(NAME).await.unwrap().waiters_total == 1;
    eventually_async(SOON, is_queued).await;
    let to = other_primary(&cluster);
    cluster.begin_move(KEY, to);
    if moves_key {
        cluster.move_keys(&[KEY], to);
    }
    let late = tokio::spawn(in_time(WAIT, request()));
    assert_typed(early.await.unwrap(), true);
    assert_typed(late.await.unwrap(), false);
    held.renew().await.unwrap();
    assert!(!held.is_lost());
    cluster.end_move(KEY, to);
    assert!(locks.lock(NAME).try_acquire().await.unwrap().is_none());
    let is_left = async || locks.admin().inspect(NAME).await.unwrap().waiters_total == 0;
    eventually_async(SOON, is_left).await;
    held.release().await.unwrap();
    acquired(&locks).await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_in_an_open_slot_ends_in_time_and_the_holder_keeps_its_lock() {
    waits_end_and_the_holder_stays(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_in_a_half_moved_slot_ends_in_time_and_the_holder_keeps_its_lock() {
    waits_end_and_the_holder_stays(true).await;
}

/// Keys that are on their way to a node have connections of their own, and what is known of the node is the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_that_refuses_hello_is_reported_once() {
    let without_hello = ["--rename-command", "HELLO", ""];
    let cluster = RedisCluster::start_with(|_, options| options.args(without_hello));
    let reports: Arc<Mutex<Vec<u16>>> = Arc::default();
    let seen = Arc::clone(&reports);
    let observer = move |event: &LockEvent<'_>| {
        if let LockEvent::ServerRestricted {
            server,
            command: "HELLO",
            ..
        } = event
        {
            seen.lock().unwrap().extend(server.port());
        }
    };
    let builder = one_attempt(LockManager::builder()).observer(observer);
    let locks = builder.connect(&cluster.url()).await.unwrap();
    let to = other_primary(&cluster);
    let is_there = |name: &String| cluster.owner_of(&format!("lock:{name}")).port() == to.port();
    let there = (0..1_000)
        .map(|at| format!("there:{at}"))
        .find(is_there)
        .unwrap();
    let held = locks.lock(NAME).acquire().await.unwrap();
    use_when_connected(&locks, &there).await;
    cluster.begin_move(KEY, to);
    cluster.move_keys(&[KEY], to);
    held.renew().await.unwrap();
    let mut reports = reports.lock().unwrap().clone();
    assert!(reports.contains(&to.port()), "{reports:?}");
    let all = reports.len();
    reports.sort_unstable();
    reports.dedup();
    assert_eq!(reports.len(), all, "once for each node");
    cluster.end_move(KEY, to);
    held.release().await.unwrap();
}
