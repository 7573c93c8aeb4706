//! The lock-core side of a race, in the protocol of tests/interop/README.md.

use std::fs;
use std::io::{self, BufRead, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lock_core::{LockError, LockManager};
use tokio::sync::oneshot;
use tokio::time::sleep;

use test_support::Random;
use tests::shut_down;

/// As long as a client of another library would wait.
const WAIT: Duration = Duration::from_secs(10);

/// The pause after a refusal. The client then does not wait for the key, so this is a poll.
const REFUSED: Duration = Duration::from_millis(20);

/// The lock and the resource of a worker.
#[derive(Debug)]
pub struct WorkerConfig {
    /// The full key in the server.
    pub key: String,
    /// The ttl of the key.
    pub ttl: Duration,
    /// The file of the counter.
    pub counter: PathBuf,
    /// The longest pause between two sections, in milliseconds.
    pub pause_ms: u64,
}

/// Increments the counter until the line `stop` or the end of the input.
pub async fn work(locks: &LockManager, place: &WorkerConfig) -> ExitCode {
    let (go, began) = oneshot::channel();
    let stopped = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&stopped);
    thread::spawn(move || listen(go, &stop));
    say("ready");
    // A runner that will never send `go` has closed the input.
    let _ = began.await;

    let mut random = Random::new(u64::from(std::process::id()));
    let (mut sections, mut refused) = (0_u64, 0_u64);
    while !stopped.load(Ordering::Relaxed) {
        let request = locks.lock(place.key.as_str()).ttl(place.ttl).wait(WAIT);
        let guard = match request.acquire().await {
            Ok(guard) => guard,
            Err(LockError::ForeignKey { .. }) => {
                refused += 1;
                sleep(REFUSED).await;
                continue;
            }
            // The shares show a starving client.
            Err(error) if error.is_contended() => continue,
            Err(error) => return fail(1, &error.to_string()),
        };
        if let Err(found) = increment(&place.counter).await {
            let message = format!("the counter holds `{found}`: another process is writing it");
            return fail(3, &message);
        }
        match guard.release().await {
            Ok(()) => {}
            Err(LockError::Lost { .. }) => return fail(4, "this client no longer owned the lock"),
            Err(error) => return fail(1, &error.to_string()),
        }
        sections += 1;
        say("section");
        sleep(random.millis(0, place.pause_ms)).await;
    }
    shut_down(locks).await;
    say(&format!("done {sections} {refused}"));
    ExitCode::SUCCESS
}

async fn increment(counter: &Path) -> Result<(), String> {
    let text = fs::read_to_string(counter).expect("the counter file exists");
    let value: u64 = text.parse().map_err(|_| text)?;
    sleep(Duration::from_millis(1)).await;
    fs::write(counter, (value + 1).to_string()).expect("the counter is writable");
    Ok(())
}

fn listen(go: oneshot::Sender<()>, stop: &AtomicBool) {
    let mut go = Some(go);
    for line in io::stdin().lock().lines() {
        match line.as_deref() {
            Ok("go") => {
                let _ = go.take().map(|go| go.send(()));
            }
            _ => break,
        }
    }
    stop.store(true, Ordering::Relaxed);
}

fn say(line: &str) {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").expect("the runner reads");
    out.flush().expect("the runner reads");
}

fn fail(code: u8, message: &str) -> ExitCode {
    eprintln!("{message}");
    ExitCode::from(code)
}
