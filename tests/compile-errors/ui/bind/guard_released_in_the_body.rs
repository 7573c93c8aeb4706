use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", bind = held)]
async fn f() -> Result<(), LockError> {
    held.release().await?;
    Ok(())
}

fn main() {}
