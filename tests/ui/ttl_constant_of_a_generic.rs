use std::time::Duration;

use lock_core::{LockError, distributed_lock};

trait Lease {
    const TTL: Duration;
}

struct Short;

impl Lease for Short {
    const TTL: Duration = Duration::from_millis(50);
}

#[distributed_lock(name = "x", ttl = L::TTL)]
async fn f<L: Lease>() -> Result<(), LockError> {
    Ok(())
}

// Only a build that uses the function evaluates its constants.
fn main() {
    drop(f::<Short>());
}
