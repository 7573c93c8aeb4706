//! Many held locks.

use std::time::Duration;

use lock_core::{LockGuard, LockManager};
use tokio::task::JoinSet;

/// Acquires this many locks at the same time. More would let the buffers of the connection grow,
/// which is not what a bench of held locks measures.
const AT_ONCE: u32 = 64;

/// Acquires `count` locks, each on a key of its own, and appends their guards.
///
/// # Panics
///
/// Panics if a lock is not free, or if the server does not reply.
pub async fn acquire_all(
    locks: &LockManager,
    count: u32,
    ttl: Duration,
    guards: &mut Vec<LockGuard>,
) {
    let mut next = 0;
    while next < count {
        let mut tasks = JoinSet::new();
        for number in next..count.min(next + AT_ONCE) {
            let locks = locks.clone();
            tasks.spawn(async move {
                let request = locks.lock(format!("job:{number}")).ttl(ttl);
                request.acquire().await.expect("the lock is free")
            });
        }
        next += AT_ONCE;
        while let Some(guard) = tasks.join_next().await {
            guards.push(guard.expect("no task panics"));
        }
    }
}
