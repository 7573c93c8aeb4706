//! Durations that are constants.

use std::time::Duration;

use lock_core::{LockError, LockManager, distributed_lock};

const TTL: Duration = Duration::from_secs(2);

const fn minutes(count: u64) -> Duration {
    Duration::from_secs(60 * count)
}

#[distributed_lock(name = "c", ttl = TTL, wait = minutes(1), manager = locks)]
async fn constant(locks: &LockManager) -> Result<(), LockError> {
    Ok(())
}

struct Short;

trait Lease {
    const TTL: Duration;
}

impl Lease for Short {
    const TTL: Duration = Duration::from_millis(100);
}

impl Short {
    const WAIT: Duration = Duration::from_millis(1);

    #[distributed_lock(name = "c", ttl = <Self as Lease>::TTL, wait = Self::WAIT, manager = locks)]
    async fn own(&self, locks: &LockManager) -> Result<(), LockError> {
        Ok(())
    }
}

#[distributed_lock(name = "c", ttl = L::TTL, wait = Duration::from_millis(W), manager = locks)]
async fn generic<L: Lease, const W: u64>(locks: &LockManager) -> Result<(), LockError> {
    Ok(())
}

#[tokio::test]
async fn durations_may_be_constants() {
    let locks = LockManager::in_memory();
    constant(&locks).await.expect("the lock is free");
    Short.own(&locks).await.expect("the lock is free");
    generic::<Short, 1>(&locks).await.expect("the lock is free");
}
