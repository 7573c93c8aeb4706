//! The option `bind`.

use lock_core::{LockError, LockGuard, LockManager, distributed_lock};

#[distributed_lock(name = "bound", manager = locks, bind = held)]
async fn bound(locks: &LockManager) -> Result<bool, LockError> {
    let held: &LockGuard = held;
    tokio::task::yield_now().await;
    Ok(!held.is_lost())
}

#[tokio::test]
async fn bind_gives_the_body_the_guard() {
    assert!(bound(&LockManager::in_memory()).await.expect("free"));
}
