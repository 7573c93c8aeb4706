use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x")]
async fn f(order: Ordr) -> Result<Ordr, LockError> {
    Ok(order)
}

fn main() {}
