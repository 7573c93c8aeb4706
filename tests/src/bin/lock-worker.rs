//! A process that uses locks, for tests that kill it. What it does is in its arguments, what
//! happened in JSON lines:
//!
//! - `count FILE TASKS ROUNDS` increments the number in a file under the attribute;
//! - `take NAME TTL WAIT TASKS` has tasks wait for a lock (both times in milliseconds), says
//!   `{"held": TOKEN}` for each grant, and keeps what it got;
//! - `leave COUNT` takes locks, drops guards, waiters and tries, shuts the manager down and ends;
//! - `ask` uses the attribute once and says `{"done": true}` or `{"error": MESSAGE}`.
//!
//! The server is that of DISTRIBUTED_LOCK_URL.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use tests::shut_down;

use lock_core::{LockError, LockManager, distributed_lock};
use serde_json::json;
use tokio::task::JoinSet;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().expect("an argument is missing");
    match next().as_str() {
        "count" => count(next().into(), number(&next()), number(&next())).await,
        "take" => {
            let (name, ttl, wait) = (next(), millis(&next()), millis(&next()));
            take(&name, ttl, wait, number(&next())).await;
        }
        "leave" => leave(number(&next())).await,
        "ask" => match ask().await {
            Ok(()) => say(&json!({ "done": true })),
            Err(error) => say(&json!({ "error": error.to_string() })),
        },
        other => panic!("`{other}` is not known here"),
    }
}

/// A file has no atomic increment: without the lock most of them would be lost.
#[distributed_lock(name = "counter", ttl = "5s", wait = "1m")]
async fn increment(file: &Path) -> Result<(), LockError> {
    let text = fs::read_to_string(file).expect("the file is there");
    let before: u64 = text.parse().expect("nobody is just writing it");
    tokio::task::yield_now().await;
    fs::write(file, (before + 1).to_string()).expect("the file is writable");
    Ok(())
}

async fn count(file: PathBuf, tasks: u32, rounds: u32) {
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        let file = file.clone();
        running.spawn(async move {
            for _ in 0..rounds {
                increment(&file).await.expect("the lock is to be had");
            }
        });
    }
    while let Some(task) = running.join_next().await {
        task.expect("no task panics");
    }
    say(&json!({ "counted": tasks * rounds }));
}

async fn take(name: &str, ttl: Duration, wait: Duration, tasks: u32) {
    let locks = connect().await;
    let mut taking = JoinSet::new();
    for _ in 0..tasks {
        taking.spawn(locks.lock(name).ttl(ttl).wait(wait).acquire());
    }
    let mut kept = Vec::new();
    while let Some(guard) = taking.join_next().await {
        let guard = guard.expect("no task panics").expect("the lock comes");
        let token = guard.fencing_token().expect("it has a token");
        say(&json!({ "held": token.as_u64() }));
        kept.push(guard);
    }
    std::future::pending::<()>().await;
}

async fn leave(count: u32) {
    let locks = connect().await;
    let guards: Vec<_> = {
        let mut taking = JoinSet::new();
        for number in 0..count {
            taking.spawn(locks.lock(format!("leave:{number}")).acquire());
        }
        taking.join_all().await
    };
    // Waiters and tries at different stages go before the guards do.
    let mut waiting = JoinSet::new();
    for number in 0..count {
        let name = format!("leave:{number}");
        waiting.spawn(locks.lock(&name).wait(Duration::from_secs(60)).acquire());
        waiting.spawn(locks.lock(format!("{name}:other")).acquire());
        tokio::task::yield_now().await;
    }
    waiting.abort_all();
    drop(waiting);
    for guard in guards {
        drop(guard.expect("the lock is free"));
    }
    shut_down(&locks).await;
    say(&json!({ "left": count }));
}

#[distributed_lock(name = "asked")]
async fn ask() -> Result<(), LockError> {
    Ok(())
}

async fn connect() -> LockManager {
    let url = std::env::var("DISTRIBUTED_LOCK_URL").expect("DISTRIBUTED_LOCK_URL names the server");
    let connected = LockManager::connect(&url).await;
    connected.expect("the server is there")
}

fn number<T: FromStr>(text: &str) -> T {
    let parsed = text.parse().ok();
    parsed.expect("a number is expected")
}

fn millis(text: &str) -> Duration {
    Duration::from_millis(number(text))
}

fn say(record: &serde_json::Value) {
    let mut out = io::stdout().lock();
    writeln!(out, "{record}").expect("the test reads");
    out.flush().expect("the test reads");
}
