use std::time::Duration;

use lock_core::{LockError, distributed_lock};

fn from_config() -> Duration {
    Duration::from_secs(30)
}

#[distributed_lock(name = "x", ttl = from_config())]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
