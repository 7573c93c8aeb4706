use lock_core::{LockError, distributed_lock};

const TTL: u64 = 30;

#[distributed_lock(name = "x", ttl = TTL)]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
