//! One of several instances is the leader, and does the work. When it ends or dies, another one follows.
//!
//! `cargo run -p examples --example leader -- --redis redis://127.0.0.1:6379 --folder /tmp/billing`
//!
//! Start it in two terminals, and end the leader: with Ctrl-C the other one follows at once, after
//! `kill -9` within the ttl. Stop it with `kill -STOP`, and continue it with `kill -CONT` when the other one
//! leads: the step that it was in comes too late, and is refused.

use std::convert::Infallible;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use examples::Table;
use lock_core::{FencingToken, LockError, LockGuard, LockManager};

/// A standby follows a dead leader within this time.
const TTL: Duration = Duration::from_secs(3);

#[tokio::main]
async fn main() -> ExitCode {
    examples::end(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let locks = examples::locks().await?;
    let bills = Arc::new(Table::open("--folder")?);
    println!("started");
    // The signal drops the future. This stops the work, and releases the lock in the background.
    tokio::select! {
        ended = lead(&locks, &bills) => {
            let Err(error) = ended;
            return Err(error.into());
        }
        () = examples::stop_signal() => println!("stopping"),
    }
    // Waits for the release, so that a standby follows at once.
    locks.shutdown().await?;
    Ok(())
}

// region: lead
/// Leads for as long as it can. The body runs once for each term: it is dropped when the lead is lost.
async fn lead(locks: &LockManager, bills: &Arc<Table>) -> Result<Infallible, LockError> {
    let election = locks.lock("leader:billing").ttl(TTL);
    election.lead(async |term| work(term, bills).await).await
}
// endregion

/// Says when a term has ended, however it ends.
struct Term;

impl Drop for Term {
    fn drop(&mut self) {
        println!("not the leader any more");
    }
}

/// The leader's work. Each step carries the token of the term, so that the table can refuse the step of an
/// earlier leader that was paused.
async fn work(term: &LockGuard, bills: &Arc<Table>) -> Infallible {
    let token = term.fencing_token();
    println!(
        "leading with token {}",
        token.map(|token| token.to_string()).unwrap_or_default()
    );
    let _term = Term;
    loop {
        let bills = Arc::clone(bills);
        // The step goes on when the body is dropped: no lock can take back what it does.
        let step = tokio::task::spawn_blocking(move || {
            // Computes the bills that are due.
            thread::sleep(Duration::from_millis(50));
            println!("{}", send(&bills, token));
        });
        _ = step.await;
    }
}

/// Sends the bills, unless a later leader has sent some.
fn send(bills: &Table, token: Option<FencingToken>) -> &'static str {
    let sent = bills.get("last token").ok().flatten();
    let last = sent.and_then(|last| last.parse().ok());
    // A database checks the token and writes in one statement.
    if last.is_some() && last > token {
        return "refused: a later leader has sent bills";
    }
    let token = token.map(|token| token.to_string()).unwrap_or_default();
    match bills.put("last token", &token) {
        Ok(()) => "step",
        Err(_) => "cannot write the bills",
    }
}
