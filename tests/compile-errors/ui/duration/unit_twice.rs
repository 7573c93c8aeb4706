use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", ttl = "1s1s")]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
