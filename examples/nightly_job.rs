//! A job that every instance of a service starts and only one runs.
//!
//! `cargo run -p examples --example nightly_job -- --redis redis://127.0.0.1:6379`
//!
//! Start it in two terminals: one runs the job, the other says that it skips it.
//! `--takes MS` is what the job takes.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use lock_core::LockManager;

/// The instances' clocks may differ by this: nobody who starts so much later runs the job again.
const LATE_STARTERS: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> ExitCode {
    examples::end(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let takes = examples::option("--takes")?.map_or(Duration::from_secs(3), Duration::from_millis);
    let locks = LockManager::connect(&examples::lock_url()?).await?;

    // A crashed instance keeps the lock for one ttl; a living one renews it, however long the
    // job takes.
    let lock = locks.lock("nightly-report").ttl(Duration::from_secs(30));
    let Some(guard) = lock.try_acquire().await? else {
        println!("skipped: another instance runs the report");
        return Ok(());
    };
    println!("running: this instance has the lock");

    let late_starters = tokio::time::sleep(LATE_STARTERS);
    // What is left undone when the lock is lost is undone for the next night, and not done twice.
    tokio::select! {
        () = guard.lost() => return Err("the lock was lost, the report is not finished".into()),
        () = report(takes) => println!("finished: the report is written"),
    }
    late_starters.await;
    // The report is written, whatever becomes of the lock now.
    if let Err(error) = guard.release().await {
        eprintln!("the lock was not released in order: {error}");
    }
    Ok(())
}

async fn report(takes: Duration) {
    tokio::time::sleep(takes).await;
}
