//! The keys that remain in the server after all clients have ended.

use std::time::Duration;

use lock_core::dialect::Dialect;
use lock_core::{LockError, LockManager};
use test_support::fixtures::{all_keys, current_thread_runtime};
use test_support::{RedisServer, Reply};
use tests::shut_down;

use crate::crew::PATIENCE;
use crate::dialects;
use crate::worker::LONG_KEYS;
use crate::worker::SHORT_KEYS;
use crate::worker::TTL;

/// Added to the ttl: expiry has millisecond resolution, and clock drift is zero on one machine.
pub(crate) const ROUNDING: Duration = Duration::from_millis(300);

/// The prefix of all lock keys; it is the default of a manager.
pub(crate) const PREFIX: &str = "lock:";

/// The beginning of the counters of fenced locks of Redisson, which have no expiry.
pub(crate) const TOKENS: &str = "redisson_lock_token:";

/// The keys that remain after all clients have ended and the longest lease has expired.
#[derive(Debug, Default)]
pub struct LeftBehind {
    /// Keys that should no longer exist.
    pub survivors: Vec<String>,
    /// Keys without an expiry, where the dialect cannot prevent them. An acquire of such a lock has
    /// to repair it; otherwise the key is a survivor too.
    pub unexpiring: Vec<String>,
}

/// Finds keys that should no longer exist. This covers locks at once, and all keys except counters
/// after one more client has acquired each lock.
pub fn left_behind(server: &RedisServer, dialect: Dialect) -> LeftBehind {
    let mut left = LeftBehind::default();
    for key in all_keys(server).into_iter().filter(|key| is_lock(key)) {
        let is_unexpiring = server.cli(&["PTTL", &key]) == Reply::Integer(-1);
        if is_unexpiring && dialects::may_leave_unexpiring(dialect) {
            left.unexpiring.push(key);
        } else {
            left.survivors.push(key);
        }
    }
    let runtime = current_thread_runtime();
    if let Err(error) = runtime.block_on(visit(server, dialect, &mut left)) {
        let text = format!("a lock that cannot be acquired any more: {error}");
        left.survivors.push(text);
    }
    let has_counters = dialect.capabilities().is_fenced();
    let rest = all_keys(server).into_iter();
    let is_counter = |key: &String| key.ends_with(":f") || key.starts_with(TOKENS);
    left.survivors
        .extend(rest.filter(|key| !(has_counters && is_counter(key))));
    left
}

async fn visit(
    server: &RedisServer,
    dialect: Dialect,
    left: &mut LeftBehind,
) -> Result<(), LockError> {
    let builder = LockManager::builder().dialect(dialect);
    let locks = builder.connect(&server.url()).await?;
    // One attempt must be enough.
    for key in &left.unexpiring {
        let name = key.strip_prefix(PREFIX).unwrap_or(key);
        if locks.lock(name).ttl(TTL).try_acquire().await?.is_some() {
            left.survivors
                .push(format!("{key}, and yet another client acquired it"));
        }
    }
    if !left.unexpiring.is_empty() {
        tokio::time::sleep(TTL + ROUNDING).await;
        left.survivors
            .extend(all_keys(server).into_iter().filter(|key| is_lock(key)));
    }
    for key in SHORT_KEYS.iter().chain(&LONG_KEYS) {
        let request = locks.lock(*key).wait(PATIENCE / 2);
        request.acquire().await?.release().await?;
    }
    shut_down(&locks).await;
    Ok(())
}

pub(crate) fn is_lock(key: &str) -> bool {
    key.starts_with(PREFIX)
}
