use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "{order_id}")]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
