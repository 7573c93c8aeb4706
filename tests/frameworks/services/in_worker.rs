//! Two workers on one queue each.

use std::time::Duration;

use test_support::fixtures::SOON;
use test_support::{RedisServer, eventually_async};
use tokio::sync::{mpsc, oneshot};

use crate::store::Store;
use crate::worker::{Job, run};
use crate::{assert_no_manager_is_global, instance};

#[tokio::test]
async fn workers_share_the_customers_and_sweep_once() {
    let server = RedisServer::start();
    let store = Store::default();
    let mut workers = Vec::new();
    for _ in 0..2 {
        let (jobs, receiver) = mpsc::channel(16);
        let (stop, stopped) = oneshot::channel::<()>();
        let stopped = async { stopped.await.expect("the test stops it") };
        let sweep_every = Duration::from_secs(60);
        let locks = instance(&server).await;
        let worker = run(locks, store.clone(), receiver, sweep_every, stopped);
        workers.push((jobs, stop, tokio::spawn(worker)));
    }
    for round in 0..20 {
        for (jobs, ..) in &workers {
            let customer = round % 2;
            jobs.send(Job { customer }).await.expect("it runs");
        }
    }
    eventually_async(SOON, async || {
        store.read("invoices:0").await == 20 && store.read("invoices:1").await == 20
    })
    .await;
    // Both workers swept at their start.
    assert_eq!(store.read("sweeps").await, 1);
    assert_no_manager_is_global().await;
    for (_, stop, worker) in workers {
        stop.send(()).expect("it runs");
        let ended = worker.await.expect("no panic");
        ended.expect("it ends without an error");
    }
}
