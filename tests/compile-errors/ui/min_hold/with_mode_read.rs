use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", mode = read, min_hold = "1s")]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
