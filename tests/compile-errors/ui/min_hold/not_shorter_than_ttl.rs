use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", ttl = "30s", min_hold = "40s")]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
