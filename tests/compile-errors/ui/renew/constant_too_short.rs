use std::time::Duration;

use lock_core::{LockError, distributed_lock};

const RENEW: Duration = Duration::from_millis(9);

#[distributed_lock(name = "x", renew = RENEW)]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
