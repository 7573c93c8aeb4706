use lock_core::{Lock, LockError, LockManager};

#[derive(Lock)]
#[lock(name = "order:{order_id}")]
struct OrderLock {
    order_id: u64,
}

async fn read(locks: &LockManager) -> Result<(), LockError> {
    let order = locks.hold(OrderLock { order_id: 7 }).acquire().await?;
    order.downgrade().await?;
    Ok(())
}

fn main() {}
