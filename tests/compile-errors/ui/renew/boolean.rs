use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", renew = false)]
async fn f() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(name = "x", renew = true)]
async fn g() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
