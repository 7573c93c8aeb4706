use lock_core::{LockError, distributed_lock};

struct Order {
    id: u8,
}

#[distributed_lock(name = "order:{order.idd}")]
async fn f(order: Order) -> Result<(), LockError> {
    let _ = order.id;
    Ok(())
}

fn main() {}
