use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", ttl = auto, wait = forever, max_hold = never)]
async fn f() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(name = "x", wait = false, renew = "never")]
async fn g() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(name = "x", renew = every, permits = dynamic(every.as_secs()))]
async fn h(every: std::time::Duration) -> Result<(), LockError> {
    let _ = every;
    Ok(())
}

fn main() {}
