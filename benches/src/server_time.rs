//! The server's time for a pair of acquire and release.

use std::time::Duration;

use lock_core::LockManager;
use test_support::RedisServer;
use tokio::task::JoinSet;

use crate::command_stats::{self, CommandStats};
use crate::pairs;
use crate::raw::RawPair;

/// Tasks that send at the same time, so that the server reads many commands at once. Otherwise the
/// client would use the processor's caches between two commands.
const TASKS: u32 = 50;

/// The lowest server times of a pair, in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct ServerTime {
    /// The raw pair.
    pub raw: f64,
    /// A guard of one attempt.
    pub one_attempt: f64,
    /// A guard of an acquire that would wait.
    pub waiting: f64,
}

/// Measures blocks of `pairs` pairs, and returns the best of `rounds` blocks. Other work on the
/// machine can only make the server slower. Needs a runtime of one thread.
///
/// # Panics
///
/// Panics if the server does not reply, or if a pair is not two commands.
pub async fn measure(server: &RedisServer, rounds: usize, pairs: u32) -> ServerTime {
    let raw = RawPair::connect(&server.url()).await;
    let locks = pairs::connect(server).await;
    let mut best = ServerTime {
        raw: f64::INFINITY,
        one_attempt: f64::INFINITY,
        waiting: f64::INFINITY,
    };
    // The first round loads the scripts.
    pairs::guard(&locks, "guard", pairs::WAIT).await;
    for _ in 0..rounds {
        best.raw = best.raw.min(block(server, &raw, pairs).await);
        for (wait, best) in [
            (Duration::ZERO, &mut best.one_attempt),
            (pairs::WAIT, &mut best.waiting),
        ] {
            let guards = Guards {
                locks: locks.clone(),
                wait,
            };
            *best = best.min(block(server, &guards, pairs).await);
        }
    }
    best
}

/// The two halves of a pair.
trait Halves: Clone + Send + 'static {
    type Held: Send;

    fn acquire(&mut self, key: &str) -> impl Future<Output = Self::Held> + Send;

    fn release(&mut self, key: &str, held: Self::Held) -> impl Future<Output = ()> + Send;
}

impl Halves for RawPair {
    type Held = String;

    async fn acquire(&mut self, key: &str) -> String {
        self.set(key).await
    }

    async fn release(&mut self, key: &str, owner: String) {
        self.delete(key, &owner).await;
    }
}

#[derive(Clone)]
struct Guards {
    locks: LockManager,
    wait: Duration,
}

impl Halves for Guards {
    type Held = lock_core::LockGuard;

    async fn acquire(&mut self, key: &str) -> Self::Held {
        pairs::acquire(&self.locks, key, self.wait).await
    }

    async fn release(&mut self, _key: &str, guard: Self::Held) {
        guard.release().await.expect("the lock was held");
    }
}

/// Returns the server's time for one pair.
///
/// Half of the tasks begin with the release of a lock. The tasks run in turn, so the server executes
/// an acquire and a release alternately. When it repeats one command, that command gets faster than
/// any server with several clients sees.
async fn block<P: Halves>(server: &RedisServer, pair: &P, pairs: u32) -> f64 {
    let mut held = Vec::new();
    for task in 0..TASKS {
        let mut pair = pair.clone();
        held.push(if task % 2 == 0 {
            None
        } else {
            Some(pair.acquire(&key(task)).await)
        });
    }
    command_stats::reset(server);
    let mut tasks = JoinSet::new();
    for (task, first) in (0..TASKS).zip(held) {
        let mut pair = pair.clone();
        tasks.spawn(async move {
            let key = key(task);
            let mut held = first;
            for _ in 0..2 * (pairs / TASKS) {
                held = match held {
                    None => Some(pair.acquire(&key).await),
                    Some(held) => {
                        pair.release(&key, held).await;
                        None
                    }
                };
            }
            (key, held)
        });
    }
    let ended = tasks.join_all().await;
    let stats = CommandStats::read(server);
    for (key, held) in ended {
        if let Some(held) = held {
            pair.clone().release(&key, held).await;
        }
    }

    let pairs = f64::from(pairs / TASKS * TASKS);
    let [set, scripts] = [stats.of("set"), stats.of_scripts()];
    // The library's scripts call SET themselves, and its time is a part of theirs.
    let set_by_client = scripts.calls < 1.5 * pairs;
    let (calls, micros) = if set_by_client {
        (set.calls + scripts.calls, set.micros + scripts.micros)
    } else {
        (scripts.calls, scripts.micros)
    };
    // Without this, a change of the library would make the figure mean something else.
    assert!(
        (calls - 2.0 * pairs).abs() < 0.5,
        "the clients sent {calls} commands for {pairs} pairs"
    );
    micros / pairs
}

fn key(task: u32) -> String {
    format!("server-time:{task}")
}
