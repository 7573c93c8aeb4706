use lock_core::{LockError, distributed_lock};

use std::time::Duration;

#[distributed_lock(name = "x", renew = "13h")]
async fn f() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(name = "x", renew = Duration::from_secs(13 * 3600))]
async fn g() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
