use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", permits = 20000)]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
