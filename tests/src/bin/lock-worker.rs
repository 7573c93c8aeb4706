//! A process that uses locks, for tests that kill it. Its arguments name one of these jobs, and it
//! writes JSON lines:
//!
//! - `count FILE TASKS ROUNDS` increments the number in a file under the attribute, and writes
//!   `{"counted": NUMBER}`.
//! - `acquire NAME TTL WAIT TASKS` starts tasks that wait for a lock (both times in milliseconds),
//!   writes `{"held": TOKEN}` for each grant, and holds all locks that it gets.
//! - `hold KIND NAME TTL WAIT` does the same with one task and a lock of a kind: `exclusive`, `read`, or the
//!   number of permits of which it takes one.
//! - `set FIRST SECOND TTL WAIT` waits for two locks as one set, writes `{"held": true}`, and holds them.
//! - `drop COUNT` acquires locks, drops guards, waiters and attempts, shuts the manager down, and
//!   writes `{"dropped": COUNT}`.
//! - `late-write FILE NAME TTL` reads the number in a file under a lock and writes `{"read": NUMBER}`.
//!   After a line on stdin it increments that number in the file, and writes `{"written": NUMBER}`, or
//!   `{"lost": true}` when the lock is known to be lost.
//! - `call` calls a function with the attribute once, and writes `{"done": true}` or
//!   `{"error": MESSAGE}`.
//! - `config` writes the configuration in the environment, `{"config": DEBUG}`.
//! - `from-env` connects with that configuration, acquires a lock, and writes
//!   `{"key": .., "remaining_ms": .., "trace": EVENTS}`.
//!
//! The server is the one that `DISTRIBUTED_LOCK_URL` names.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lock_core::config::ManagerConfig;
use lock_core::{Kind, LockError, LockManager, distributed_lock};
use serde_json::json;
use test_support::child::{Arguments, say, wait_for_end_of_input};
use tests::{Trace, connect_to_env, shut_down};
use tokio::task::JoinSet;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() {
    let mut arguments = Arguments::new();
    match arguments.text().as_str() {
        "count" => {
            count(
                arguments.text().into(),
                arguments.number(),
                arguments.number(),
            )
            .await;
        }
        "acquire" => {
            let (name, ttl, wait) = (arguments.text(), arguments.millis(), arguments.millis());
            acquire(Kind::Exclusive, &name, ttl, wait, arguments.number()).await;
        }
        "hold" => {
            let kind = kind(&arguments.text());
            let (name, ttl, wait) = (arguments.text(), arguments.millis(), arguments.millis());
            acquire(kind, &name, ttl, wait, 1).await;
        }
        "set" => {
            let names = [arguments.text(), arguments.text()];
            hold_set(names, arguments.millis(), arguments.millis()).await;
        }
        "drop" => drop_everything(arguments.number()).await,
        "late-write" => {
            let file: PathBuf = arguments.text().into();
            late_write(&file, &arguments.text(), arguments.millis()).await;
        }
        "call" => match call().await {
            Ok(()) => say(&json!({ "done": true })),
            Err(error) => say(&json!({ "error": error.to_string() })),
        },
        "config" => {
            let config = ManagerConfig::from_env().expect("the configuration is valid");
            say(&json!({ "config": format!("{config:?}") }));
        }
        "from-env" => from_env().await,
        other => panic!("no job named `{other}`"),
    }
}

/// A file has no atomic increment: without the lock most of them would be lost.
#[distributed_lock(name = "counter", ttl = "5s", wait = "1m")]
async fn increment(file: &Path) -> Result<(), LockError> {
    let text = fs::read_to_string(file).expect("the file exists");
    let before: u64 = text.parse().expect("no other holder is writing it");
    tokio::task::yield_now().await;
    fs::write(file, (before + 1).to_string()).expect("the file is writable");
    Ok(())
}

async fn hold_set(names: [String; 2], ttl: Duration, wait: Duration) {
    let locks = connect_to_env().await;
    let set = locks.lock_all(names).ttl(ttl).wait(wait).acquire().await;
    let _set = set.expect("the locks are released in time");
    say(&json!({ "held": true }));
    std::future::pending::<()>().await;
}

async fn from_env() {
    let (trace, _tracing) = Trace::begin();
    let locks = LockManager::from_env().await.expect("the server is there");
    // The second manager must not repeat a warning.
    let again = LockManager::from_env().await.expect("the server is there");
    let held = locks.lock("from-env").acquire().await.expect("it is free");
    let left = u64::try_from(held.remaining().as_millis()).expect("some seconds");
    say(&json!({ "key": held.key(), "remaining_ms": left, "trace": trace.text() }));
    held.release().await.expect("it is released");
    shut_down(&again).await;
    shut_down(&locks).await;
}

async fn count(file: PathBuf, tasks: u32, rounds: u32) {
    let mut running = JoinSet::new();
    for _ in 0..tasks {
        let file = file.clone();
        running.spawn(async move {
            for _ in 0..rounds {
                increment(&file).await.expect("the lock is acquired");
            }
        });
    }
    while let Some(task) = running.join_next().await {
        task.expect("no task panics");
    }
    say(&json!({ "counted": tasks * rounds }));
}

fn kind(text: &str) -> Kind {
    match text {
        "exclusive" => Kind::Exclusive,
        "read" => Kind::Read,
        permits => Kind::Permits {
            of: permits.parse().expect("a kind, or a number of permits"),
            weight: 1,
        },
    }
}

async fn acquire(kind: Kind, name: &str, ttl: Duration, wait: Duration, tasks: u32) {
    let locks = connect_to_env().await;
    let mut acquiring = JoinSet::new();
    for _ in 0..tasks {
        acquiring.spawn(locks.lock(name).kind(kind).ttl(ttl).wait(wait).acquire());
    }
    let mut kept = Vec::new();
    while let Some(guard) = acquiring.join_next().await {
        let guard = guard.expect("no task panics").expect("the lock is granted");
        let token = guard.fencing_token().expect("the lock has a fencing token");
        say(&json!({ "held": token.as_u64() }));
        kept.push(guard);
    }
    std::future::pending::<()>().await;
}

async fn drop_everything(count: u32) {
    let locks = connect_to_env().await;
    let guards: Vec<_> = {
        let mut acquiring = JoinSet::new();
        for number in 0..count {
            acquiring.spawn(locks.lock(format!("drop:{number}")).acquire());
        }
        acquiring.join_all().await
    };
    // Waiters and attempts at different stages are dropped before the guards.
    let mut waiting = JoinSet::new();
    for number in 0..count {
        let name = format!("drop:{number}");
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
    say(&json!({ "dropped": count }));
}

async fn late_write(file: &Path, name: &str, ttl: Duration) {
    let locks = connect_to_env().await;
    let held = locks.lock(name).ttl(ttl).acquire().await;
    let held = held.expect("the lock is free");
    let text = fs::read_to_string(file).expect("the file exists");
    let before: u64 = text.parse().expect("the file has a number");
    say(&json!({ "read": before }));
    let mut line = String::new();
    std::io::stdin()
        .read_line(&mut line)
        .expect("stdin is readable");
    if held.is_lost() {
        say(&json!({ "lost": true }));
    } else {
        fs::write(file, (before + 1).to_string()).expect("the file is writable");
        say(&json!({ "written": before + 1 }));
    }
    wait_for_end_of_input();
}

#[distributed_lock(name = "called")]
async fn call() -> Result<(), LockError> {
    Ok(())
}
