use lock_core::{LockError, distributed_lock};

struct Order;

#[distributed_lock(name = "order:{order}")]
async fn f(order: Order) -> Result<(), LockError> {
    let _ = order;
    Ok(())
}

fn main() {}
