//! A worker without a web framework: it takes jobs from a queue, and sweeps at regular times. No
//! function has an `on_error`, and no manager is global.

use std::error::Error;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use lock_core::{LockError, LockManager, distributed_lock};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{MissedTickBehavior, interval};

use crate::store::Store;

/// One job for a customer.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) customer: u64,
}

/// Runs jobs until `stop`. Then it takes no more jobs, lets the running ones end, and releases the
/// locks.
pub(crate) async fn run(
    locks: LockManager,
    store: Store,
    mut jobs: mpsc::Receiver<Job>,
    sweep_every: Duration,
    stop: impl Future<Output = ()>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut stop = pin!(stop);
    let mut ticks = interval(sweep_every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            () = &mut stop => break,
            _ = ticks.tick() => spawn(&mut running, &locks, sweep(store.clone())),
            Some(job) = jobs.recv() => spawn(&mut running, &locks, invoice(store.clone(), job)),
            Some(ended) = running.join_next() => log(ended),
        }
    }
    while let Some(ended) = running.join_next().await {
        log(ended);
    }
    locks.shutdown().await?;
    Ok(())
}

fn log(ended: Result<Result<(), LockError>, JoinError>) {
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "the job did not run, or not to its end"),
        Err(panic) => tracing::error!(%panic, "the job panicked"),
    }
}

/// Spawns a task in the scope of the manager: a task inherits no scope.
fn spawn(
    tasks: &mut JoinSet<Result<(), LockError>>,
    locks: &LockManager,
    task: impl Future<Output = Result<(), LockError>> + Send + 'static,
) {
    let locks = locks.clone();
    tasks.spawn(async move { locks.scope(task).await });
}

/// One job for each customer at a time, in all workers.
#[distributed_lock(name = "customer:{job.customer}", ttl = "10s", wait = "10s")]
async fn invoice(store: Store, job: Job) -> Result<(), LockError> {
    store.add_one(&format!("invoices:{}", job.customer)).await;
    Ok(())
}

/// All workers start it at about the same time. `min_hold` keeps a worker with a late clock out.
#[distributed_lock(name = "sweep", ttl = "10s", min_hold = "5s", on_contended = skip)]
async fn sweep(store: Store) -> Result<(), LockError> {
    store.add_one("sweeps").await;
    Ok(())
}
