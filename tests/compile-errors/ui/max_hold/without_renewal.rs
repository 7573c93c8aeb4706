use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", max_hold = "1h", renew = never)]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
