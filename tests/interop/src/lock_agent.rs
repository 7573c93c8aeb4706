//! The lock-core agent of the experiments, in the protocol of tests/interop/README.md.

use std::collections::HashMap;
use std::io::{self, BufRead};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use lock_core::telemetry::{LockEvent, LockObserver};
use lock_core::{FencingToken, LockError, LockGuard, LockManager, LockRequest, Renew};
use test_support::child::say_line;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use crate::wakes::WakeObserver;
use crate::worker::micros;

/// Longer than any experiment.
const WAIT: Duration = Duration::from_secs(120);

/// Prints when a waiter begins to wait, and counts how waits end.
#[derive(Clone, Debug, Default)]
pub struct AgentObserver {
    /// How the last wait ended.
    pub wakes: WakeObserver,
}

impl LockObserver for AgentObserver {
    fn on_event(&self, event: &LockEvent<'_>) {
        self.wakes.on_event(event);
        if let LockEvent::Queued { lock, .. } = event {
            say_event("waiting", lock.key());
        }
    }
}

/// Executes the commands on stdin until its end.
pub async fn run(locks: LockManager, observer: AgentObserver) -> ExitCode {
    let (sender, mut lines) = mpsc::unbounded_channel();
    thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });
    // Connects, so that the first command is not slow.
    drop(locks.lock("warm-up").try_acquire().await);
    say_line("ready");
    let mut keys: HashMap<String, UnboundedSender<String>> = HashMap::new();
    while let Some(line) = lines.recv().await {
        let key = line.split(' ').nth(2).unwrap_or_default().to_owned();
        let commands = keys.entry(key.clone()).or_insert_with(|| {
            let (sender, commands) = mpsc::unbounded_channel();
            let lock = AgentLock {
                locks: locks.clone(),
                wakes: observer.wakes.clone(),
                key,
                guard: None,
            };
            tokio::spawn(lock.run(commands));
            sender
        });
        let _ = commands.send(line);
    }
    // The locks that it still holds end with their leases, as after a crash.
    ExitCode::SUCCESS
}

/// One key of the agent.
struct AgentLock {
    locks: LockManager,
    wakes: WakeObserver,
    key: String,
    guard: Option<LockGuard>,
}

impl AgentLock {
    async fn run(mut self, mut commands: UnboundedReceiver<String>) {
        while let Some(line) = commands.recv().await {
            let mut words = line.split(' ');
            let id = words.next().unwrap_or_default();
            let name = words.next().unwrap_or_default();
            let numbers: Vec<i64> = words.skip(1).filter_map(|word| word.parse().ok()).collect();
            let began = micros();
            let result = match (name, &numbers[..]) {
                ("lock", &[lease]) => self.acquire(WAIT, lease).await,
                ("tryLock", &[wait, lease]) => self.acquire(millis(wait), lease).await,
                ("unlock", []) => self.release().await,
                ("remain", []) => {
                    let left = self.guard.as_ref().map(LockGuard::remaining);
                    format!("number {}", left.unwrap_or_default().as_millis())
                }
                _ => panic!("no command `{line}`"),
            };
            say_line(&format!("{id} {began} {} {result}", micros()));
        }
    }

    async fn acquire(&mut self, wait: Duration, lease: i64) -> String {
        let request = with_lease(self.locks.lock(self.key.as_str()), lease);
        // Without a wait it does not subscribe either, like `tryLock()`.
        let acquired = if wait.is_zero() {
            request.try_acquire().await
        } else {
            request.wait(wait).acquire().await.map(Some)
        };
        match acquired {
            Ok(Some(guard)) => {
                let token = guard.fencing_token().map_or(0, FencingToken::as_u64);
                self.report_loss(&guard);
                self.guard = Some(guard);
                format!("held {token} {}", self.wakes.last().as_str())
            }
            Ok(None) => "busy".to_owned(),
            Err(error) if error.is_contended() => "busy".to_owned(),
            Err(LockError::Backend(error)) => format!("failed {:?}", error.kind()),
            Err(error) => format!("failed {error}"),
        }
    }

    fn report_loss(&self, guard: &LockGuard) {
        let (watch, key) = (guard.watch(), self.key.clone());
        tokio::spawn(async move {
            watch.lost().await;
            say_event("lost", &key);
        });
    }

    async fn release(&mut self) -> String {
        let Some(guard) = self.guard.take() else {
            return "gone".to_owned();
        };
        match guard.release().await {
            Ok(()) => "done".to_owned(),
            Err(LockError::Lost { .. }) => "gone".to_owned(),
            Err(error) => format!("failed {error}"),
        }
    }
}

fn with_lease(request: LockRequest, lease: i64) -> LockRequest {
    if lease < 0 {
        // The ttl of the manager, renewed until the release.
        request
    } else {
        request.ttl(millis(lease)).renew(Renew::Never)
    }
}

fn millis(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).expect("a duration is not negative"))
}

fn say_event(event: &str, key: &str) {
    let now = micros();
    say_line(&format!("0 {now} {now} {event} {key}"));
}
