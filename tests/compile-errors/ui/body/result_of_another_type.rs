use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x")]
async fn tail() -> Result<String, LockError> {
    Ok(1)
}

#[distributed_lock(name = "x")]
async fn early(early: bool) -> Result<u8, LockError> {
    if early {
        return 1;
    }
    Ok(1)
}

#[distributed_lock(name = "x")]
async fn forgotten() -> Result<(), LockError> {
    forgotten().await?;
}

fn main() {}
