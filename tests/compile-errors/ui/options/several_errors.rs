use lock_core::{LockError, distributed_lock};

#[distributed_lock(nam = "x", ttl = "30", ttl = "1s", renew = never, max_hold = "1h", on_lost = stop, release = maybe, crate = lock_core)]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
