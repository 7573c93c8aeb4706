use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", ttl = L)]
async fn f<L>() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
