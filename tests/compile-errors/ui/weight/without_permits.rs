use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", weight = 2)]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
