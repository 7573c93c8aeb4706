use std::time::Duration;

use lock_core::{Lock, LockManager};

#[derive(Lock)]
#[lock(name = "order:{order_id}", ttl = "30s")]
struct OrderLock {
    order_id: u64,
}

fn main() {
    let locks = LockManager::in_memory();
    let _ = locks.hold(OrderLock { order_id: 1 }).ttl(Duration::from_secs(1));
}
