use lock_core::{LockError, distributed_lock};

struct Order {
    customer: Option<u64>,
}

#[distributed_lock(name = "order:{id}:{order.customer}")]
async fn f(id: u64, order: &Order) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
