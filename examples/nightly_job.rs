//! A job that every instance of a service starts each night, and that has to succeed on one of them.
//!
//! `cargo run -p examples --example nightly_job -- --redis redis://127.0.0.1:6379`
//!
//! Start it in two terminals: one runs the job, the other skips it. Start it again: it skips, because the report of
//! this night is written. `--takes MS` sets how long the job runs, and `--fails true` lets it fail: then the next
//! instance runs it.
//!
//! The job may start before the lock server does, for example after the machines have lost power: it tries for ten
//! minutes, or for `--outage-wait MS`.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use lock_core::LockManager;

/// A little less than the time from one night to the next: the period counts from the start of the job, which may be
/// a few seconds later in one night than in the next.
const PERIOD: Duration = Duration::from_secs(23 * 60 * 60);

/// How long a lock server may be away. It is shorter than the time until the next night.
const OUTAGE: Duration = Duration::from_secs(10 * 60);

#[tokio::main]
async fn main() -> ExitCode {
    examples::end(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let takes = examples::option("--takes")?.map_or(Duration::from_secs(3), Duration::from_millis);
    let outage = examples::option("--outage-wait")?.map_or(OUTAGE, Duration::from_millis);
    let fails = examples::option("--fails")?.unwrap_or(false);
    // Returns without a connection. A wrong URL is an error all the same.
    let locks = LockManager::builder().connect_lazy(examples::lock_url()?)?;

    // A crashed instance keeps the lock for one ttl. A running instance renews it as long as the job runs. An instance
    // that waits runs the job if the one before it fails, and skips it as soon as that one succeeds.
    let lock = locks
        .lock("nightly-report")
        .ttl(Duration::from_secs(30))
        .once_per(PERIOD)
        .wait(Duration::from_secs(10 * 60))
        .outage_wait(outage);
    // When the lock is lost, the job stops: another instance may be running it.
    match lock
        .run_once(async |_held| report(takes, fails).await)
        .await
    {
        Ok(Ok(())) => println!("finished: the report is written"),
        Ok(Err(failure)) => println!("failed: {failure}"),
        Err(done) if done.is_done() => println!("skipped: the report of this night is written"),
        Err(busy) if busy.is_contended() => println!("skipped: another instance runs the report"),
        Err(error) => return Err(error.into()),
    }
    locks.shutdown().await?;
    Ok(())
}

async fn report(takes: Duration, fails: bool) -> Result<(), &'static str> {
    println!("running: this instance has the lock");
    tokio::time::sleep(takes).await;
    if fails {
        return Err("the printer has no paper");
    }
    Ok(())
}
