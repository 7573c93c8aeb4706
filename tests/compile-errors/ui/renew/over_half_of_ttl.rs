use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", ttl = "30s", renew = "20s")]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
