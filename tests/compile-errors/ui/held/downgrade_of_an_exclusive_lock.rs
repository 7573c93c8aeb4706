use lock_core::{Held, Lock, LockError};

#[derive(Lock)]
#[lock(name = "order:{order_id}")]
struct OrderLock {
    order_id: u64,
}

async fn f(order: Held<OrderLock>) -> Result<(), LockError> {
    order.downgrade().await?;
    Ok(())
}

fn main() {}
