use lock_core::{LockError, distributed_lock};

use std::time::Duration;

#[distributed_lock(name = "x", ttl = dynamic(), wait = dynamic(wait.await), renew = dynamic(wait))]
async fn f(wait: std::future::Ready<Duration>) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
