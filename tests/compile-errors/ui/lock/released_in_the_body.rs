use lock_core::{Lock, LockError, distributed_lock};

#[derive(Lock)]
#[lock(name = "order:{order_id}")]
struct OrderLock {
    order_id: u64,
}

#[distributed_lock(lock = OrderLock { order_id: 1 }, bind = order)]
async fn f() -> Result<(), LockError> {
    order.release().await
}

fn main() {}
