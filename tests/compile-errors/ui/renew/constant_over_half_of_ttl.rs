use std::time::Duration;

use lock_core::{LockError, distributed_lock};

const RENEW: Duration = Duration::from_secs(20);

#[distributed_lock(name = "x", ttl = "30s", renew = RENEW)]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
