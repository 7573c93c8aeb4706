use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", min_hold = "25h")]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
