//! Helpers for the tests of topologies.

use std::sync::atomic::{AtomicU32, Ordering};

use lock_core::LockManager;
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

/// Returns a prefix that no other test of this program has, for tests that share servers.
pub fn own_prefix() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("test:{}:", NEXT.fetch_add(1, Ordering::Relaxed))
}
