//! What an attack on the engine broke, on a real server: each test is one of its programs.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use lock_core::{LockGuard, LockManager, LockManagerBuilder};
use test_support::{RedisServer, Reply};
use tokio::task::JoinHandle;

mod background;
mod connecting;
mod foreign_code;
mod fork;
mod notifications;
mod probe;
mod queue;
mod texts;
mod tokens;

/// Bound on conditions that say nothing about speed.
const SOON: Duration = Duration::from_secs(20);

/// How much later than it has to an error or a loss may come.
const NOTICE: Duration = Duration::from_millis(250);

/// Threads of a busy machine wake up late.
const SLACK: Duration = Duration::from_millis(300);

/// A ttl that nobody here waits for.
const LONG: Duration = Duration::from_secs(60);

const NAME: &str = "job";
const KEY: &str = "lock:job";
const QUEUE: &str = "{lock:job}:q";
const COUNTER: &str = "{lock:job}:f";

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A manager, in a process whose tracing events, wakers and drops are watched.
async fn connect(server: &RedisServer) -> LockManager {
    connect_to(LockManager::builder(), &server.url()).await
}

async fn connect_to(builder: LockManagerBuilder, url: &str) -> LockManager {
    probe::install();
    builder.connect(url).await.unwrap()
}

/// The keys that are there, but for counters, which live on for some minutes.
fn keys(server: &RedisServer) -> Vec<String> {
    let keys = server.cli(&["KEYS", "*"]);
    let texts = keys.array().iter().map(Reply::text);
    texts
        .filter(|key| !key.ends_with(":f"))
        .map(ToOwned::to_owned)
        .collect()
}

/// The result of a program that may hang, which is a failure and not a hang of the test.
fn within<T: Send + 'static>(limit: Duration, program: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    let program = thread::spawn(move || {
        let result = program();
        let _ = sender.send(());
        result
    });
    match receiver.recv_timeout(limit) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        _ => program.join().expect("the program does not panic"),
    }
}

fn runtime(threads: usize) -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .unwrap()
}

type Waiting = JoinHandle<Result<LockGuard, lock_core::LockError>>;

/// A waiter in a task of its own, once so many stand in the queue.
async fn waiter(server: &RedisServer, locks: &LockManager, wait: Duration, count: i64) -> Waiting {
    let waiting = tokio::spawn(locks.lock(NAME).ttl(LONG).wait(wait).acquire());
    test_support::eventually_async(SOON, async || {
        server.cli(&["ZCARD", QUEUE]).integer() == count
    })
    .await;
    waiting
}
