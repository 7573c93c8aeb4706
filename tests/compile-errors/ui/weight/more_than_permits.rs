use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", permits = 2, weight = 3)]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
