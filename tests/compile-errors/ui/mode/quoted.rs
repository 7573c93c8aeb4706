use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", mode = "read")]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
