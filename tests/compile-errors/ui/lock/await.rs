use lock_core::{Lock, LockError, distributed_lock};

#[derive(Lock)]
#[lock(name = "order:{order_id}")]
struct OrderLock {
    order_id: u64,
}

async fn order() -> OrderLock {
    OrderLock { order_id: 1 }
}

#[distributed_lock(lock = order().await)]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
