use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", renew = "5ms")]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
