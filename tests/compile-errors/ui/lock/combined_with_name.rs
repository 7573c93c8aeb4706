use lock_core::{Lock, LockError, distributed_lock};

#[derive(Lock)]
#[lock(name = "order:{order_id}")]
struct OrderLock {
    order_id: u64,
}

#[distributed_lock(lock = OrderLock { order_id }, name = "order:{order_id}")]
async fn f(order_id: u64) -> Result<(), LockError> {
    let _ = order_id;
    Ok(())
}

fn main() {}
