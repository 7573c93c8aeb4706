//! At most two jobs of each tenant run at the same time, in all instances together.
//!
//! `cargo run -p examples --example per_tenant_limit -- --redis redis://127.0.0.1:6379`
//!
//! `--jobs N` is the number of jobs of this instance, and `--log FILE` records their begins and ends.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use lock_core::{LockManager, distributed_lock};
use tokio::task::JoinSet;

type Failure = Box<dyn Error + Send + Sync>;

/// How long one job takes.
const WORK: Duration = Duration::from_millis(100);

#[tokio::main]
async fn main() -> ExitCode {
    examples::end(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let locks = examples::locks().await?;
    let log: Option<PathBuf> = examples::option("--log")?;
    let mut jobs = JoinSet::new();
    for number in 0..examples::option("--jobs")?.unwrap_or(6) {
        let (locks, log) = (locks.clone(), log.clone());
        jobs.spawn(async move { job(&locks, "acme", number, log).await });
    }
    for ended in jobs.join_all().await {
        ended.map_err(|error| error as Box<dyn Error>)?;
    }
    locks.shutdown().await?;
    Ok(())
}

// region: limit
/// Runs one job of the tenant when fewer than two of its jobs run. Until then it waits in the tenant's queue.
#[distributed_lock(
    name = "tenant:{tenant}",
    permits = 2,
    ttl = "5s",
    wait = "30s",
    manager = locks,
)]
async fn job(
    locks: &LockManager,
    tenant: &str,
    number: u32,
    log: Option<PathBuf>,
) -> Result<(), Failure> {
    note("begin", number, log.as_ref())?;
    tokio::time::sleep(WORK).await;
    note("end", number, log.as_ref())?;
    Ok(())
}
// endregion

fn note(what: &str, number: u32, log: Option<&PathBuf>) -> std::io::Result<()> {
    println!("{what} {number}");
    log.map_or(Ok(()), |log| examples::append(log, what))
}
