//! At most two jobs of each tenant run at the same time, in all instances together.
//!
//! `cargo run -p examples --example per_tenant_limit -- --redis redis://127.0.0.1:6379`
//!
//! `--jobs N` is the number of jobs of this instance, and `--log FILE` records their begins and ends.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use lock_core::{LockError, LockGuard, LockManager, lock_name};
use tokio::task::JoinSet;

/// How many jobs of a tenant run at the same time.
const SLOTS: u32 = 2;

const TTL: Duration = Duration::from_secs(5);

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
        jobs.spawn(async move {
            let result = job(&locks, "acme", number, log).await;
            result.map_err(|error| error.to_string())
        });
    }
    for ended in jobs.join_all().await {
        ended?;
    }
    locks.shutdown().await?;
    Ok(())
}

// region: slot
/// Returns a free slot of the tenant, or nothing when all of them are in use.
async fn free_slot(locks: &LockManager, tenant: &str) -> Result<Option<LockGuard>, LockError> {
    for n in 0..SLOTS {
        let slot = locks.lock(lock_name!("tenant:{tenant}:slot:{n}")).ttl(TTL);
        if let Some(guard) = slot.try_acquire().await? {
            return Ok(Some(guard));
        }
    }
    Ok(None)
}
// endregion

async fn job(
    locks: &LockManager,
    tenant: &str,
    number: u32,
    log: Option<PathBuf>,
) -> Result<(), Box<dyn Error>> {
    let note = |what: &str| {
        println!("{what} {number}");
        log.as_ref()
            .map_or(Ok(()), |log| examples::append(log, what))
    };
    let slot = loop {
        if let Some(slot) = free_slot(locks, tenant).await? {
            break slot;
        }
        // An endpoint would answer 429 here. A job tries again later: it gets no
        // notification of a free slot.
        tokio::time::sleep(WORK / 4).await;
    };
    note("begin")?;
    // The lost lock stops the job: its slot may belong to another job.
    tokio::select! {
        () = slot.lost() => return Err("the slot was lost".into()),
        () = tokio::time::sleep(WORK) => {}
    }
    note("end")?;
    slot.release().await?;
    Ok(())
}
