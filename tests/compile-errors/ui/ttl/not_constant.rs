use lock_core::{LockError, distributed_lock};

use std::time::Duration;

#[distributed_lock(name = "x", ttl = ttl)]
async fn f(ttl: Duration) -> Result<(), LockError> {
    let _ = ttl;
    Ok(())
}

fn main() {}
