use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", ttl = "30s", max_hold = "10s")]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
