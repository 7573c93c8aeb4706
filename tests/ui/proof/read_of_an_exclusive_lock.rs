use lock_core::{Lock, LockManager};

#[derive(Lock)]
#[lock(name = "order:{order_id}")]
struct OrderLock {
    order_id: u64,
}

fn request(locks: &LockManager) {
    let _request = locks.read(OrderLock { order_id: 7 });
}

fn main() {}
