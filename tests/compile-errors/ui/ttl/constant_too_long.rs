use lock_core::{LockError, distributed_lock};

use std::time::Duration;

#[distributed_lock(name = "x", ttl = Duration::from_secs(86_401))]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
