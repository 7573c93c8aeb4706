//! Runs a load of locks against your own Redis, and checks that the locks kept their promises.
//!
//! ```text
//! cargo run -p examples --example check_my_redis -- --redis redis://127.0.0.1:6379 --seconds 10
//! ```
//!
//! Break something meanwhile: restart the server, or stop this program with `SIGSTOP` for longer than
//! the ttl of a second. The recorder notes for how long the program did not run.
//!
//! For a load of several processes, start each with `--record FILE`. Then check all files with
//! `--check FILE,FILE`, which needs no server.

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use examples::{end, lock_url, option};
use lock_core::LockManager;
use lock_testing::{Checker, FencedRegister, History, RecordedGuard, Recorder, Report};
use tokio::task::JoinSet;

/// Eight tasks share three locks, so most of them wait.
const TASKS: u32 = 8;
const LOCKS: u32 = 3;

const TTL: Duration = Duration::from_secs(1);
const WAIT: Duration = Duration::from_secs(2);

/// The prefix of all keys, so that the load does not touch the locks of your services.
const PREFIX: &str = "check-my-redis:";

#[tokio::main]
async fn main() -> ExitCode {
    end(run().await)
}

async fn run() -> Result<(), Box<dyn Error>> {
    let report = if let Some(files) = option::<String>("--check")? {
        Checker::new().check(&History::read_files(files.split(','))?)
    } else {
        let seconds = option("--seconds")?.unwrap_or(10);
        load(Duration::from_secs(seconds)).await?
    };
    println!("{report}");
    if report.held_locks() == 0 {
        return Err("no lock was acquired, so nothing was checked".into());
    }
    if !report.is_ok() {
        return Err("a promise was broken; the report shows when".into());
    }
    println!("=> all promises were kept");
    Ok(())
}

async fn load(span: Duration) -> Result<Report, Box<dyn Error>> {
    let builder = LockManager::builder().prefix(PREFIX).default_ttl(TTL);
    let locks = builder.connect(&lock_url()?).await?;
    let mut builder = Recorder::builder(locks.clone());
    if let Some(file) = option::<String>("--record")? {
        builder = builder.file(file);
    }
    let recorder = builder.build()?;
    let register = Arc::new(FencedRegister::new(&recorder));
    let until = Instant::now() + span;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (recorder, register) = (recorder.for_task(task), Arc::clone(&register));
        tasks.spawn(async move {
            let mut turn = task;
            while Instant::now() < until {
                turn += 1;
                let request = recorder.lock(format!("{}", turn % LOCKS)).wait(WAIT);
                match request.acquire().await {
                    Ok(guard) => work(guard, &register, turn).await,
                    Err(error) => {
                        eprintln!("{error}");
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
            }
        });
    }
    tasks.join_all().await;
    locks.shutdown().await?;
    recorder.finish()?;
    Ok(Checker::new().check(&recorder.history()))
}

/// Adds one to the number that the lock protects. Some sections are longer than the ttl.
async fn work(guard: RecordedGuard, register: &FencedRegister, turn: u32) {
    let pause = if turn.is_multiple_of(50) {
        TTL * 3 / 2
    } else {
        TTL / 200
    };
    if let Err(stale) = register.increment(guard.record(), pause).await {
        // The lock was lost, and the holder has not stopped in time. The register has.
        eprintln!("{stale}");
    }
    if let Err(error) = guard.release().await {
        eprintln!("{error}");
    }
}
