//! Locks on a real server: the commands, the stored keys, and the behaviour under faults.

use lock_core::{LockManager, LockManagerBuilder};
use test_support::RedisServer;
use tests::one_attempt;

mod addresses;
mod background;
mod bad_input;
mod body_forms;
mod campaign;
mod cancellation;
mod commands;
mod configuration;
mod connecting;
mod credentials;
mod default_wait;
mod foreign_clients;
mod foreign_code;
mod foreign_keys;
mod fork;
mod hosted;
mod hostile;
mod kind_events;
mod kinds;
mod lazy;
mod lead;
mod leases;
mod names;
mod network;
mod notifications;
mod observe;
mod probe;
mod queue;
mod readiness;
mod rights;
mod risk;
mod scripts;
mod sets;
mod stats;
mod texts;
mod tickets;
mod tokens;
mod turns;

/// Connects a manager in a process that checks tracing events, wakers and drops.
async fn connect(server: &RedisServer) -> LockManager {
    connect_with(LockManager::builder(), &server.url()).await
}

/// Connects like [`connect`], with other settings.
async fn connect_with(builder: LockManagerBuilder, url: &str) -> LockManager {
    probe::install();
    one_attempt(builder).connect(url).await.unwrap()
}
