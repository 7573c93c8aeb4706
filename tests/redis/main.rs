//! Locks on a real server: what is sent, what is stored, and what happens when something fails.

use lock_core::{LockManager, LockManagerBuilder};
use test_support::RedisServer;
use tests::one_attempt;

mod background;
mod bad_input;
mod cancellation;
mod commands;
mod connecting;
mod default_wait;
mod foreign_clients;
mod foreign_code;
mod foreign_keys;
mod fork;
mod leases;
mod network;
mod notifications;
mod probe;
mod queue;
mod rights;
mod scripts;
mod stats;
mod texts;
mod tokens;
mod turns;

/// A manager in a process whose tracing events, wakers and drops are checked.
async fn connect(server: &RedisServer) -> LockManager {
    connect_with(LockManager::builder(), &server.url()).await
}

/// As [`connect`], with other settings.
async fn connect_with(builder: LockManagerBuilder, url: &str) -> LockManager {
    probe::install();
    one_attempt(builder).connect(url).await.unwrap()
}
