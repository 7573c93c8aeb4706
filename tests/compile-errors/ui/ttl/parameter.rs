use lock_core::{LockError, distributed_lock};

use std::time::Duration;

struct Times {
    wait: Duration,
}

#[distributed_lock(name = "x", ttl = ttl, wait = times.wait, max_hold = 2 * ttl)]
async fn f(ttl: Duration, times: &Times) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
