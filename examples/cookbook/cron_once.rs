//! A job that each instance starts every day at the same time, and that has to succeed once a day.
//!
//! `cargo run -p examples --example cron_once -- --redis redis://127.0.0.1:6379`
//!
//! Start it in two terminals, one second apart: the second one skips, although the first one has already
//! finished. With `--fails true` the job fails, and the next instance runs it.

use std::error::Error;
use std::process::ExitCode;

use lock_core::{LockManager, distributed_lock};

#[tokio::main]
async fn main() -> ExitCode {
    examples::end(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let locks = examples::locks().await?;
    // A scheduler calls the function. Here, the program is started at each time of the schedule.
    let fails = examples::option("--fails")?.unwrap_or(false);
    match send_digest(&locks, fails).await {
        Ok(Some(mails)) => println!("ran: sent {mails} mails"),
        Ok(None) => println!("skipped: another instance runs this job, or has run it today"),
        Err(error) => println!("failed: {error}"),
    }
    locks.shutdown().await?;
    Ok(())
}

// region: job
/// Once the digest was sent, the name stays taken for 23 hours from the start. A digest that fails leaves nothing, so
/// the next instance may send it. The time is an hour shorter than the interval between two runs, because one day's job
/// may start a little later than the next day's.
#[distributed_lock(
    name = "digest",
    ttl = "30s",
    once_per = "23h",
    on_contended = skip,
    manager = locks,
)]
async fn send_digest(
    locks: &LockManager,
    fails: bool,
) -> Result<Option<u32>, Box<dyn Error + Send + Sync>> {
    Ok(Some(send_mails(fails).await?))
}
// endregion

async fn send_mails(fails: bool) -> Result<u32, &'static str> {
    tokio::task::yield_now().await;
    if fails {
        return Err("the mail server is away");
    }
    Ok(12)
}
