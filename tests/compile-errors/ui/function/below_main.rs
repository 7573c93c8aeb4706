use lock_core::{LockError, distributed_lock};

#[tokio::main]
#[distributed_lock(name = "x")]
async fn main() -> Result<(), LockError> {
    Ok(())
}
