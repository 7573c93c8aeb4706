use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", ttl = dynamic(seconds))]
async fn f(seconds: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
