use std::time::Duration;

use lock_core::{LockError, distributed_lock};

const TTL: Duration = Duration::from_secs(10);

#[distributed_lock(name = "x", ttl = TTL, max_hold = "10s")]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
