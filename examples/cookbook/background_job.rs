//! A request that takes the lock and answers, and a job in another process that works under the same lock and
//! releases it.
//!
//! ```sh
//! cargo run -p examples --example background_job -- --redis redis://127.0.0.1:6379 --order 7
//! ```
//!
//! Run it twice at the same time: the second request gets a 409 while the job of the first one works, although the first
//! request was answered long ago. `--work MS` is the time that the job takes. Without a server, the job runs in the
//! process of the request.

use std::error::Error;
use std::io::Write;
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use lock_core::{LockError, LockManager, LockTicket, lock_name};

#[tokio::main]
async fn main() -> ExitCode {
    examples::end(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let locks = examples::locks().await?;
    if std::env::args().any(|argument| argument == "--job") {
        let mut text = String::new();
        std::io::stdin().read_line(&mut text)?;
        ship(&locks, text.trim().parse()?).await?;
    } else {
        let order = examples::option("--order")?.unwrap_or(7);
        match accept(&locks, order).await? {
            Some(ticket) => {
                println!("202 Accepted");
                start_job(&locks, ticket).await?;
            }
            None => println!("409 Conflict: order {order} is being shipped"),
        }
    }
    locks.shutdown().await?;
    Ok(())
}

// region: accept
/// The request: takes the lock, and hands it to the job.
async fn accept(locks: &LockManager, order: u64) -> Result<Option<LockTicket>, LockError> {
    let Some(held) = locks
        .lock(lock_name!("order:{order}"))
        .try_acquire()
        .await?
    else {
        return Ok(None);
    };
    // If no job takes over within a minute, the order is free again.
    let ticket = held.into_ticket(Duration::from_secs(60)).await?;
    Ok(Some(ticket))
}

/// The job: takes over the lock, which is renewed from here on.
async fn ship(locks: &LockManager, ticket: LockTicket) -> Result<(), LockError> {
    let held = locks.resume(ticket).await?;
    ship_under(held.name()).await;
    held.release().await
}
// endregion

/// Starts the job, as a queue of jobs would, and doesn't wait for it.
async fn start_job(locks: &LockManager, ticket: LockTicket) -> Result<(), Box<dyn Error>> {
    if examples::lock_url().is_err() {
        return Ok(ship(locks, ticket).await?);
    }
    let mut job = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .arg("--job")
        .stdin(Stdio::piped())
        .spawn()?;
    // The text is a secret, so it is neither an argument nor a line of a log.
    if let Some(mut stdin) = job.stdin.take() {
        writeln!(stdin, "{ticket}")?;
    }
    Ok(())
}

async fn ship_under(name: &str) {
    let work = examples::option("--work").ok().flatten().unwrap_or(10);
    tokio::time::sleep(Duration::from_millis(work)).await;
    println!("shipped {name}");
}
