use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", mode = shared)]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
