use lock_core::{Lock, LockManager};

#[derive(Lock)]
#[lock(name = "order:{order_id}")]
struct OrderLock {
    order_id: u64,
}

fn f(locks: &LockManager) {
    let _ = locks.hold_write(OrderLock { order_id: 1 });
}

fn main() {}
