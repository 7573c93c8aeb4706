use lock_core::{LockError, distributed_lock};

use std::time::Duration;

#[distributed_lock(name = "x", wait = Duration::ZERO)]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
