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
use lock_core::request::Term;
use lock_core::{FencingToken, LockError, LockManager};

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
    // The signal drops the future. This drops the body, and releases the lock in the background.
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
    election.lead(|term| work(term, bills)).await
}
// endregion

/// Says when a term has ended, however it ends.
struct Leading;

impl Drop for Leading {
    fn drop(&mut self) {
        println!("not the leader any more");
    }
}

/// The leader's work. Each write carries the token of the term, so that the table can refuse the write of an earlier
/// leader that was paused.
async fn work(term: Term, bills: &Arc<Table>) -> Infallible {
    let token = term.fencing_token().expect("a lock of Redis has a token");
    // Before anything else: from now on, the table refuses the steps of earlier leaders.
    let claimed = on_blocking_thread(bills, move |bills| write(bills, token, "leading")).await;
    println!("{claimed} with token {token}");
    let _leading = Leading;
    loop {
        // The step goes on when the body is dropped: no lock can take back what it does.
        on_blocking_thread(bills, move |bills| {
            println!("computing");
            // Computes the bills that are due.
            thread::sleep(Duration::from_millis(500));
            println!("{}", write(bills, token, "step"));
        })
        .await;
    }
}

async fn on_blocking_thread<T: Send + 'static>(
    bills: &Arc<Table>,
    run: impl FnOnce(&Table) -> T + Send + 'static,
) -> T {
    let bills = Arc::clone(bills);
    let running = tokio::task::spawn_blocking(move || run(&bills));
    running.await.expect("the step does not panic")
}

/// Writes under the token of the term, unless a later leader has written. Returns what was done.
fn write(bills: &Table, token: FencingToken, what: &'static str) -> &'static str {
    let Ok(row) = bills.get("last token") else {
        return "refused: cannot read the last token";
    };
    // A database checks the token and writes in one statement.
    match row.map(|last| last.parse::<FencingToken>()).transpose() {
        Ok(last) if last > Some(token) => return "refused: a later leader has sent bills",
        Ok(_) => {}
        // A row that cannot be read is a refusal: a later leader may have written it.
        Err(_) => return "refused: the last token is no number",
    }
    match bills.put("last token", &token.to_string()) {
        Ok(()) => what,
        Err(_) => "cannot write the bills",
    }
}
