//! The pairs of acquire and release that the benches compare with the raw pair.

use std::hint::black_box;
use std::time::Duration;

use lock_core::{Kind, LockError, LockGuard, LockManager, LockManagerBuilder, distributed_lock};
use test_support::RedisServer;

use crate::raw::TTL;

/// The default of a manager.
pub const WAIT: Duration = Duration::from_secs(5);

/// A loaded machine may take the core from a bench for longer than a manager waits by default.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// Connects a manager that waits for a reply until the lock expires.
///
/// # Panics
///
/// Panics if the server does not reply.
pub async fn connect(server: &RedisServer) -> LockManager {
    connected(LockManager::builder(), server).await
}

/// Connects such a manager with this label.
///
/// # Panics
///
/// Panics if the server does not reply.
pub async fn connect_with_label(server: &RedisServer, label: &str) -> LockManager {
    connected(LockManager::builder().label(label), server).await
}

async fn connected(builder: LockManagerBuilder, server: &RedisServer) -> LockManager {
    connect_to(builder, &server.url()).await
}

/// Connects such a manager with other settings, to the servers of a URL.
///
/// # Panics
///
/// Panics if the servers do not reply.
pub async fn connect_to(builder: LockManagerBuilder, url: &str) -> LockManager {
    let builder = builder.command_timeout(COMMAND_TIMEOUT);
    let locks = builder.connect(url).await;
    locks.expect("the server is up")
}

/// Acquires and releases a lock with a guard. `wait` of zero makes one attempt.
///
/// # Panics
///
/// Panics if the lock is not free, or if the server does not reply.
pub async fn guard(locks: &LockManager, key: &str, wait: Duration) {
    section(locks, key, Kind::Exclusive, wait).await;
}

/// Acquires and releases a lock of a kind with a guard. `wait` of zero makes one attempt.
///
/// # Panics
///
/// As [`guard`].
pub async fn section(locks: &LockManager, key: &str, kind: Kind, wait: Duration) {
    let guard = acquire(locks, key, kind, wait).await;
    guard.release().await.expect("the lock was held");
}

/// Acquires a lock of a kind. `wait` of zero makes one attempt.
///
/// # Panics
///
/// Panics if the lock is not free, or if the server does not reply.
pub async fn acquire(locks: &LockManager, key: &str, kind: Kind, wait: Duration) -> LockGuard {
    let request = locks.lock(black_box(key)).kind(kind).ttl(TTL).wait(wait);
    request.acquire().await.expect("the lock is free")
}

/// Calls an annotated function with an empty body. It waits by default.
///
/// # Panics
///
/// Panics if the lock is not free, or if the server does not reply.
pub async fn attribute(locks: &LockManager, key: &str) {
    let done = annotated(locks, black_box(key)).await;
    done.expect("the lock is free");
}

#[distributed_lock(name = "{key}", ttl = "30s", manager = locks)]
async fn annotated(locks: &LockManager, key: &str) -> Result<(), LockError> {
    Ok(())
}
