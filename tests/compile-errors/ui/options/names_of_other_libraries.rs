use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "x", expire = "30s", timeout = "5s")]
async fn f() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(name = "x", leaseTime = "30s", retry = 3)]
async fn g() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(name = "x", lockAtMostFor = "30s", lockAtLeastFor = "5s", TTL = "1s")]
async fn h() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(name = "x", kind = read)]
async fn i() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(name = "x", semaphore = 4)]
async fn j() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
