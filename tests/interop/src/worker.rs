//! The lock-core side of a race, in the protocol of tests/interop/README.md.

use std::io::{self, BufRead};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lock_core::{FencingToken, LockError, LockManager};
use tokio::sync::oneshot;
use tokio::time::sleep;

use test_support::Random;
use test_support::child::say_line;
use tests::shut_down;

use crate::counter::{CounterFault, increment};
use crate::wakes::WakeObserver;

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
    /// Whether the other side counts with fencing tokens too.
    pub has_tokens: bool,
    /// The observer of the manager, in a dialect whose releases notify the waiters of other clients.
    pub wakes: Option<WakeObserver>,
}

/// Returns the wall clock in microseconds since the epoch, which all processes of the machine share.
pub fn micros() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.expect("the clock is after 1970");
    u64::try_from(now.as_micros()).expect("the clock is before the year 500,000")
}

/// Increments the counter until the line `stop` or the end of the input.
pub async fn work(locks: &LockManager, place: &WorkerConfig) -> ExitCode {
    let (go, began) = oneshot::channel();
    let stopped = Arc::new(AtomicBool::new(false));
    let stop = Arc::clone(&stopped);
    thread::spawn(move || listen(go, &stop));
    say_line("ready");
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
        let token = guard.fencing_token().filter(|_| place.has_tokens);
        let count = match increment(&place.counter, token.map(FencingToken::as_u64)).await {
            Ok(count) => count,
            Err(CounterFault::Torn(text)) => {
                let message = format!("the counter holds `{text}`: another process is writing it");
                return fail(3, &message);
            }
            Err(CounterFault::OldToken { token, last }) => {
                return fail(5, &format!("got the fencing token {token} after {last}"));
            }
        };
        match guard.release().await {
            Ok(()) => {}
            Err(LockError::Lost { .. }) => return fail(4, "this client no longer owned the lock"),
            Err(error) => return fail(1, &error.to_string()),
        }
        sections += 1;
        say_line(&format!("section {count} {}", micros()));
        sleep(random.millis(0, place.pause_ms)).await;
    }
    shut_down(locks).await;
    let wakes = place.wakes.as_ref().map(WakeObserver::counts);
    let wakes = wakes.map_or(String::new(), |wakes| format!(" {wakes}"));
    say_line(&format!("done {sections} {refused}{wakes}"));
    ExitCode::SUCCESS
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

fn fail(code: u8, message: &str) -> ExitCode {
    eprintln!("{message}");
    ExitCode::from(code)
}
