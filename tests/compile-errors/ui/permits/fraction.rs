use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", permits = -1.5)]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
