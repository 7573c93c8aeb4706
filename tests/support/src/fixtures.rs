//! Names, bounds and queries that most tests share.

use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use crate::resp::Reply;
use crate::server::RedisServer;

/// Bound on conditions whose speed does not matter.
pub const SOON: Duration = Duration::from_secs(20);

/// Bound on conditions that must not need a timer. It is less than the earliest poll of a waiter
/// that gets no notification (750 ms), and far less than a handover lease (2 s) or the default ttl
/// (30 s). It is long enough for a busy machine.
pub const AT_ONCE: Duration = Duration::from_millis(600);

/// The delay with which a thread of a busy machine may wake up.
pub const SLACK: Duration = Duration::from_millis(300);

/// The delay after its limit with which an error or a loss may be reported.
pub const NOTICE: Duration = Duration::from_millis(250);

/// A ttl that no test waits for: a key that is removed earlier was not removed by its expiry.
pub const LONG: Duration = Duration::from_secs(60);

/// The name of the lock that most tests use.
pub const NAME: &str = "job";

/// The key of [`NAME`].
pub const KEY: &str = "lock:job";

/// The queue of [`NAME`].
pub const QUEUE: &str = "{lock:job}:q";

/// The counter of [`NAME`]'s fencing tokens.
pub const COUNTER: &str = "{lock:job}:f";

/// Returns this many milliseconds.
pub const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Returns all keys of the server, sorted.
pub fn all_keys(server: &RedisServer) -> Vec<String> {
    let reply = server.cli(&["KEYS", "*"]);
    let texts = reply.array().iter().map(Reply::text);
    let mut keys: Vec<_> = texts.map(ToOwned::to_owned).collect();
    keys.sort_unstable();
    keys
}

/// Returns the keys of the server except the fencing counters, which live for five minutes, and those of Redisson,
/// which have no expiry.
pub fn keys(server: &RedisServer) -> Vec<String> {
    let mut keys = all_keys(server);
    keys.retain(|key| !key.ends_with(":f") && !key.starts_with("redisson_lock_token:"));
    keys
}

/// Returns whether the server has this key.
pub fn exists(server: &RedisServer, key: &str) -> bool {
    server.cli(&["EXISTS", key]).integer() == 1
}

/// Returns the time until the server expires this key.
pub fn time_to_expiry(server: &RedisServer, key: &str) -> Duration {
    let left = server.cli(&["PTTL", key]).integer();
    Duration::from_millis(u64::try_from(left).expect("the key exists and has an expiry"))
}

/// Returns the number of waiters in the queue of [`NAME`].
pub fn queue_length(server: &RedisServer) -> i64 {
    server.cli(&["ZCARD", QUEUE]).integer()
}

/// Cuts all connections of this type (`normal` or `pubsub`), and returns how many there were.
pub fn kill_clients(server: &RedisServer, kind: &str) -> i64 {
    server.cli(&["CLIENT", "KILL", "TYPE", kind]).integer()
}

/// Returns a runtime that runs on the thread that calls `block_on`.
pub fn current_thread_runtime() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_all().build().expect("the runtime starts")
}

/// Returns a runtime with this many threads.
pub fn multi_thread_runtime(threads: usize) -> Runtime {
    let mut builder = Builder::new_multi_thread();
    let builder = builder.worker_threads(threads).enable_all();
    builder.build().expect("the runtime starts")
}
