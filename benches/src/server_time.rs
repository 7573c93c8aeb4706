//! The server's time for a pair of acquire and release.

use std::time::Duration;

use lock_core::{Kind, LockGuard, LockManager};
use test_support::RedisServer;
use tokio::task::JoinSet;

use crate::pairs;
use crate::raw::RawPair;
use crate::script_pair::{BOUND, EMPTY, ScriptPair};
use crate::server_info::{CommandStats, SCRIPT};

/// Tasks that send at the same time, so that the server reads many commands at once. Otherwise the
/// client would use the processor's caches between two commands.
const TASKS: u32 = 50;

/// The label of the manager and of the scripts that are compared with it. It is as long as a default.
const LABEL: &str = "a-machine:12345";

/// The lowest server times of a pair, in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct ServerTime {
    /// The raw pair.
    pub raw: f64,
    /// Scripts with the keys and arguments of one attempt that call nothing.
    pub empty: f64,
    /// Scripts with the keys and arguments of one attempt that make only the necessary calls.
    pub bound: f64,
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
    let url = server.url();
    let raw = RawPair::connect(&url).await;
    let [empty, bound] = [
        ScriptPair::connect(&url, EMPTY, LABEL).await,
        ScriptPair::connect(&url, BOUND, LABEL).await,
    ];
    for task in 0..TASKS {
        bound.clone().seed_counter(&bound.key(task)).await;
    }
    let locks = pairs::connect_with_label(server, LABEL).await;
    let [one_attempt, waiting] = [Duration::ZERO, pairs::WAIT].map(|wait| Guards {
        locks: locks.clone(),
        kind: Kind::Exclusive,
        wait,
    });
    let mut best = ServerTime {
        raw: f64::INFINITY,
        empty: f64::INFINITY,
        bound: f64::INFINITY,
        one_attempt: f64::INFINITY,
        waiting: f64::INFINITY,
    };
    for _ in 0..rounds {
        best.raw = best.raw.min(block(server, &raw, pairs).await);
        best.empty = best.empty.min(block(server, &empty, pairs).await);
        best.bound = best.bound.min(block(server, &bound, pairs).await);
        best.one_attempt = best
            .one_attempt
            .min(block(server, &one_attempt, pairs).await);
        best.waiting = best.waiting.min(block(server, &waiting, pairs).await);
    }
    best
}

/// The two halves of a pair.
trait Halves: Clone + Send + 'static {
    /// The commands that a client sends for a pair.
    const COMMANDS: &[&str];

    type Held: Send;

    /// Returns the lock of a task.
    fn key(&self, task: u32) -> String {
        format!("server-time:{task}")
    }

    fn acquire(&mut self, key: &str) -> impl Future<Output = Self::Held> + Send;

    fn release(&mut self, key: &str, held: Self::Held) -> impl Future<Output = ()> + Send;
}

impl Halves for RawPair {
    const COMMANDS: &[&str] = &["set", SCRIPT];

    type Held = String;

    async fn acquire(&mut self, key: &str) -> String {
        self.set(key).await
    }

    async fn release(&mut self, key: &str, owner: String) {
        self.delete(key, &owner).await;
    }
}

impl Halves for ScriptPair {
    const COMMANDS: &[&str] = &[SCRIPT];

    type Held = String;

    async fn acquire(&mut self, key: &str) -> String {
        ScriptPair::acquire(self, key).await
    }

    async fn release(&mut self, key: &str, owner_id: String) {
        ScriptPair::release(self, key, &owner_id).await;
    }
}

/// Measures pairs of one attempt for each of these kinds, and returns their server times in microseconds. Needs a
/// runtime of one thread.
///
/// # Panics
///
/// As [`measure`].
pub async fn of_kinds(server: &RedisServer, kinds: &[Kind], rounds: usize, pairs: u32) -> Vec<f64> {
    let locks = pairs::connect_with_label(server, LABEL).await;
    let mut best = vec![f64::INFINITY; kinds.len()];
    for _ in 0..rounds {
        for (best, &kind) in best.iter_mut().zip(kinds) {
            let guards = Guards {
                locks: locks.clone(),
                kind,
                wait: Duration::ZERO,
            };
            *best = best.min(block(server, &guards, pairs).await);
        }
    }
    best
}

#[derive(Clone)]
struct Guards {
    locks: LockManager,
    kind: Kind,
    wait: Duration,
}

impl Halves for Guards {
    const COMMANDS: &[&str] = &[SCRIPT];

    type Held = LockGuard;

    async fn acquire(&mut self, key: &str) -> LockGuard {
        pairs::acquire(&self.locks, key, self.kind, self.wait).await
    }

    async fn release(&mut self, _key: &str, guard: LockGuard) {
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
        held.push(if task % 2 == 0 {
            None
        } else {
            Some(pair.clone().acquire(&pair.key(task)).await)
        });
    }
    let before = CommandStats::read(server).of(P::COMMANDS);
    let mut tasks = JoinSet::new();
    for (task, first) in (0..TASKS).zip(held) {
        let (mut pair, key) = (pair.clone(), pair.key(task));
        tasks.spawn(async move {
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
    let used = CommandStats::read(server).of(P::COMMANDS) - before;
    for (key, held) in ended {
        if let Some(held) = held {
            pair.clone().release(&key, held).await;
        }
    }

    let pairs = f64::from(pairs / TASKS * TASKS);
    // Without this, a change of the library would make the figure mean something else.
    assert!(
        (used.calls - 2.0 * pairs).abs() < 0.5,
        "the clients sent {} commands for {pairs} pairs",
        used.calls
    );
    used.micros / pairs
}
