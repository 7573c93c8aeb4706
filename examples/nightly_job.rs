//! A job that every instance of a service starts, and that only one instance runs.
//!
//! `cargo run -p examples --example nightly_job -- --redis redis://127.0.0.1:6379`
//!
//! Start it in two terminals: one runs the job, the other skips it. `--takes MS` sets how long the job
//! runs.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use lock_core::{LockGuard, LockManager};

/// The clocks of the instances may differ by this time. An instance that starts later by less than this
/// does not run the job again.
const LATE_STARTERS: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> ExitCode {
    examples::end(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let takes = examples::option("--takes")?.map_or(Duration::from_secs(3), Duration::from_millis);
    let locks = LockManager::connect(&examples::lock_url()?).await?;

    // A crashed instance keeps the lock for one ttl. A running instance renews it as long as the job
    // runs.
    let lock = locks.lock("nightly-report").ttl(Duration::from_secs(30));
    match lock.try_acquire().await? {
        None => println!("skipped: another instance runs the report"),
        Some(guard) => run_report(guard, takes).await?,
    }
    locks.shutdown().await?;
    Ok(())
}

async fn run_report(guard: LockGuard, takes: Duration) -> Result<(), Box<dyn Error>> {
    println!("running: this instance has the lock");
    let late_starters = tokio::time::sleep(LATE_STARTERS);
    // When the lock is lost, the job stops: another instance may be running it.
    tokio::select! {
        () = guard.lost() => return Err("the lock was lost, the report is not finished".into()),
        () = report(takes) => println!("finished: the report is written"),
    }
    late_starters.await;
    // The report is complete even if the release fails.
    if let Err(error) = guard.release().await {
        eprintln!("cannot release the lock: {error}");
    }
    Ok(())
}

async fn report(takes: Duration) {
    tokio::time::sleep(takes).await;
}
