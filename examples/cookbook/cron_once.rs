//! A quick job that each instance starts at the same time, and that one instance runs.
//!
//! `cargo run -p examples --example cron_once -- --redis redis://127.0.0.1:6379`
//!
//! Start it in two terminals, one second apart: the second one skips, although the first one has already
//! finished.

use std::error::Error;
use std::process::ExitCode;

use lock_core::{LockError, LockManager, distributed_lock};

#[tokio::main]
async fn main() -> ExitCode {
    examples::end(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let locks = examples::locks().await?;
    // A scheduler calls the function. Here, the program is started at each time of the schedule.
    match send_digest(&locks).await? {
        Some(mails) => println!("ran: sent {mails} mails"),
        None => println!("skipped: another instance runs this job, or has just run it"),
    }
    locks.shutdown().await?;
    Ok(())
}

// region: job
/// The key stays locked for five seconds, although the job takes less. So an instance whose clock is up
/// to five seconds late does not run the job again. The time is longer than the difference of any two
/// clocks, and shorter than the interval between two runs.
#[distributed_lock(
    name = "digest",
    ttl = "30s",
    min_hold = "5s",
    on_contended = skip,
    manager = locks,
)]
async fn send_digest(locks: &LockManager) -> Result<Option<u32>, LockError> {
    Ok(Some(send_mails().await))
}
// endregion

async fn send_mails() -> u32 {
    tokio::task::yield_now().await;
    12
}
