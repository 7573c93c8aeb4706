use lock_core::{LockError, distributed_lock};

use std::time::Duration;

const TTL: Duration = Duration::from_millis(50);

#[distributed_lock(name = "x", ttl = TTL)]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
