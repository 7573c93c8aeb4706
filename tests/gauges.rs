//! The gauges come back to where they were, however a lock or a wait ends.
//!
//! A program of its own, because the gauge of the cleanups counts those of the whole process. Another
//! test may end with a cleanup whose server is gone, and the background worker repeats it while the
//! lease lasts.

use std::panic::AssertUnwindSafe;

use lock_core::{LockError, LockGuard, LockManager, LockName, distributed_lock};
use test_support::fixtures::{LONG, NAME, SOON, ms, multi_thread_runtime};
use test_support::{RedisServer, cut, eventually_async};
use tests::{connect, lost_in_time, start_waiter};

#[path = "telemetry/recorder.rs"]
mod recorder;

const TEMPLATE: &str = "gauge:{id}";

fn gauges() -> [i64; 3] {
    let named = [("distributed_lock.name", TEMPLATE)];
    let totals = recorder::totals();
    let sum = |metric: &str, labels: &[(&str, &str)]| {
        let matching = totals
            .iter()
            .filter(|(series, _)| recorder::matches(series, metric, labels));
        matching.map(|(_, value)| value).sum()
    };
    [
        sum("distributed_lock.held", &named),
        sum("distributed_lock.waiting", &named),
        sum("distributed_lock.cleanups.open", &[]),
    ]
}

async fn assert_at_rest(what: &str) {
    println!("{what}");
    eventually_async(SOON, async || gauges() == [0; 3]).await;
}

#[distributed_lock(name = "gauge:{id}", manager = locks)]
async fn panics(locks: &LockManager, id: u32) -> Result<(), LockError> {
    panic!("the body of {id}")
}

async fn every_end(locks: &LockManager, server: Option<&RedisServer>) {
    let request = || {
        locks
            .lock(LockName::from(NAME).with_template(TEMPLATE))
            .ttl(ms(900))
    };
    let held = request().acquire().await.unwrap();
    assert_eq!(gauges(), [1, 0, 0]);
    held.release().await.unwrap();
    assert_at_rest("a release").await;

    drop(request().acquire().await.unwrap());
    assert_at_rest("a drop").await;

    request().run(async |_: &LockGuard| ()).await.unwrap();
    assert_at_rest("a body").await;

    let panicked = std::panic::catch_unwind(AssertUnwindSafe(|| {
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(panics(locks, 7)))
    }));
    assert!(panicked.is_err());
    assert_at_rest("a panic").await;

    // Each future is dropped after each number of polls.
    for polls in 0..6 {
        let run = request().run(async |_: &LockGuard| tokio::task::yield_now().await);
        let _dropped = cut(run, polls).await;
    }
    assert_at_rest("dropped calls").await;

    let held = request().acquire().await.unwrap();
    // A later poll comes with the next check of the lock, which is seconds away.
    for polls in 0..3 {
        let _dropped = cut(request().wait(SOON).acquire(), polls).await;
    }
    let timed_out = request().wait(ms(30)).acquire().await;
    assert!(timed_out.unwrap_err().is_contended());
    drop(held);
    assert_at_rest("dropped and ended waits").await;

    if let Some(server) = server {
        let held = request().acquire().await.unwrap();
        let waiter = start_waiter(server, request().wait(SOON), 1).await;
        eventually_async(SOON, async || gauges()[..2] == [1, 1]).await;
        server.cli(&["DEL", "lock:job"]);
        lost_in_time(&held).await;
        drop(waiter.await.unwrap().unwrap());
        // A lost lock is not held, also while its guard exists.
        assert_at_rest("a loss").await;
        drop(held);
        assert_at_rest("the guard of a lost lock").await;
    }
    let leaked_until_the_end = locks
        .lock(LockName::from("other").with_template(TEMPLATE))
        .ttl(LONG);
    let runtime = tokio::task::spawn(async move {
        let _held = leaked_until_the_end.acquire().await.unwrap();
        std::future::pending::<()>().await;
    });
    eventually_async(SOON, async || gauges()[0] == 1).await;
    runtime.abort();
    assert_at_rest("an aborted task").await;
}

#[test]
fn gauges_never_drift() {
    recorder::install();
    multi_thread_runtime(2).block_on(async {
        let server = RedisServer::start();
        every_end(&connect(&server).await, Some(&server)).await;
        every_end(&LockManager::in_memory(), None).await;
    });
}
