use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", ttl = 5min, wait = 500millis)]
async fn f() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(name = "x", ttl = 1m30s, wait = 1.5s)]
async fn g() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
