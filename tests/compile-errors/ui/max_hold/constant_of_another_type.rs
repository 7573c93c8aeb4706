use lock_core::{LockError, distributed_lock};

const HOLD: u64 = 10;

#[distributed_lock(name = "x", ttl = "1s", max_hold = HOLD)]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
