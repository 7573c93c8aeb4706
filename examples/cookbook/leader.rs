//! One of several instances is the leader, and does the work. When it ends or dies, another one follows.
//!
//! `cargo run -p examples --example leader -- --redis redis://127.0.0.1:6379`
//!
//! Start it in two terminals, and end the leader: with Ctrl-C the other one follows at once, after
//! `kill -9` within the ttl.

use std::convert::Infallible;
use std::error::Error;
use std::process::ExitCode;
use std::time::Duration;

use lock_core::{LockError, LockGuard, LockManager};

/// A standby follows a dead leader within this time.
const TTL: Duration = Duration::from_secs(3);

/// How long a standby waits before it begins to wait again. It has no other effect.
const WAIT: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> ExitCode {
    examples::end(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let locks = examples::locks().await?;
    println!("started");
    // The signal drops the future. This stops the work, and releases the lock in the background.
    tokio::select! {
        ended = lead_in_turn(&locks) => {
            let Err(error) = ended;
            return Err(error.into());
        }
        () = examples::stop_signal() => println!("stopping"),
    }
    // Waits for the release, so that a standby follows at once.
    locks.shutdown().await?;
    Ok(())
}

// region: loop
/// Waits for its turn, leads, and begins again when it lost the lead.
async fn lead_in_turn(locks: &LockManager) -> Result<Infallible, LockError> {
    loop {
        let turn = locks.lock("leader:billing").ttl(TTL).wait(WAIT);
        // `run` drops the body at its next `.await` when the lock is lost.
        match turn.run(async |held| lead(held).await).await {
            Ok(never) => match never {},
            Err(error) if error.is_lost() => println!("not the leader any more"),
            // Another instance leads.
            Err(error) if error.is_contended() => {}
            // The server is down: no instance leads until it is back.
            Err(error) if error.is_retryable() => {
                eprintln!("{error}");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Err(error) => return Err(error),
        }
    }
}
// endregion

/// The leader's work. Each step carries the token of the turn, so that the database can refuse the step
/// of an earlier leader that was paused.
async fn lead(held: &LockGuard) -> Infallible {
    let token = held.fencing_token().map(|token| token.to_string());
    println!("leading with token {}", token.unwrap_or_default());
    loop {
        // Sends the bills that are due, with the token.
        tokio::time::sleep(Duration::from_millis(50)).await;
        println!("step");
    }
}
