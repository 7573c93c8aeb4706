//! A job that every instance of a service starts, and that only one instance runs.
//!
//! `cargo run -p examples --example nightly_job -- --redis redis://127.0.0.1:6379`
//!
//! Start it in two terminals: one runs the job, the other skips it. `--takes MS` sets how long the job
//! runs.
//!
//! The job may start before the lock server does, for example after the machines have lost power: it tries for ten
//! minutes, or for `--outage-wait MS`.

use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use lock_core::LockManager;

/// The clocks of the instances may differ by this time. The key stays locked for it, even when the job ends earlier,
/// so an instance that starts later by less than this does not run the job again.
const LATE_STARTERS: Duration = Duration::from_secs(2);

/// How long a lock server may be away. It is shorter than the time until the next night.
const OUTAGE: Duration = Duration::from_secs(10 * 60);

#[tokio::main]
async fn main() -> ExitCode {
    examples::end(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let takes = examples::option("--takes")?.map_or(Duration::from_secs(3), Duration::from_millis);
    let outage = examples::option("--outage-wait")?.map_or(OUTAGE, Duration::from_millis);
    // Returns without a connection. A wrong URL is an error all the same.
    let locks = LockManager::builder().connect_lazy(examples::lock_url()?)?;

    // A crashed instance keeps the lock for one ttl. A running instance renews it as long as the job
    // runs. With a wait of zero, the other instances skip. They wait for the server only.
    let lock = locks
        .lock("nightly-report")
        .ttl(Duration::from_secs(30))
        .min_hold(LATE_STARTERS)
        .wait(Duration::ZERO)
        .outage_wait(outage);
    // When the lock is lost, the job stops: another instance may be running it.
    match lock.run(async |_held| report(takes).await).await {
        Ok(()) => println!("finished: the report is written"),
        Err(error) if error.is_contended() => println!("skipped: another instance runs the report"),
        Err(error) => return Err(error.into()),
    }
    locks.shutdown().await?;
    Ok(())
}

async fn report(takes: Duration) {
    println!("running: this instance has the lock");
    tokio::time::sleep(takes).await;
}
