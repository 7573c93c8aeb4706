use lock_core::{LockError, distributed_lock};

#[distributed_lock(lock = "order:1")]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
