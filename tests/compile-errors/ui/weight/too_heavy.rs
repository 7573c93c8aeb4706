use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", permits = 500, weight = 300)]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
