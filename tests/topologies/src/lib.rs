//! Helpers for the tests of topologies.

use std::sync::atomic::{AtomicU32, Ordering};

use lock_core::LockManager;
use test_support::eventually_async;
use test_support::fixtures::SOON;
use tests::one_attempt;

/// Connects a manager. Its requests try once, unless they set a `wait`.
///
/// # Panics
///
/// Panics if the servers do not accept the manager.
pub async fn connect(url: &str) -> LockManager {
    let connected = one_attempt(LockManager::builder()).connect(url).await;
    connected.expect("the servers run")
}

/// Acquires and releases a free lock, as soon as the manager has a connection again.
///
/// # Panics
///
/// Panics if that takes longer than [`SOON`].
pub async fn use_when_connected(locks: &LockManager, name: &str) {
    eventually_async(SOON, async || match locks.lock(name).try_acquire().await {
        Ok(Some(held)) => held.release().await.is_ok(),
        _ => false,
    })
    .await;
}

/// Returns a prefix that no other test of this program has, for tests that share servers.
pub fn own_prefix() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test:{}:", NEXT.fetch_add(1, Ordering::Relaxed))
}
