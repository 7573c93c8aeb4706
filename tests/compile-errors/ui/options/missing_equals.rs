use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", ttl)]
async fn f(order_id: u64) -> Result<(), LockError> {
    let _ = order_id;
    Ok(())
}

fn main() {}
