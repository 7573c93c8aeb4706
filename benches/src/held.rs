//! Many held locks.

use std::ops::Range;
use std::time::Duration;

use lock_core::{LockGuard, LockManager};
use tokio::task::JoinSet;

/// Acquires this many locks at the same time. More would let the buffers of the connection grow,
/// which is not what a bench of held locks measures.
pub const AT_ONCE: u32 = 64;

/// Acquires the locks with these numbers, each on a key of its own, and appends their guards.
///
/// # Panics
///
/// Panics if a lock is not free, or if the server does not reply.
pub async fn acquire_all(
    locks: &LockManager,
    numbers: Range<u32>,
    ttl: Duration,
    guards: &mut Vec<LockGuard>,
) {
    for first in numbers.clone().step_by(AT_ONCE as usize) {
        let mut tasks = JoinSet::new();
        for number in first..numbers.end.min(first + AT_ONCE) {
            let request = locks.lock(name(number)).ttl(ttl);
            tasks.spawn(async move { request.acquire().await.expect("the lock is free") });
        }
        while let Some(guard) = tasks.join_next().await {
            guards.push(guard.expect("no task panics"));
        }
    }
}

/// Returns the name of the lock with this number.
#[must_use]
pub fn name(number: u32) -> String {
    format!("job:{number}")
}
