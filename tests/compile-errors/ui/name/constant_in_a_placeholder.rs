use lock_core::{LockError, distributed_lock};

const PREFIX: &str = "order";

#[distributed_lock(name = "{PREFIX}:{id}")]
async fn f(id: u64) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(name = "{PREFIX}:{N}:{id}")]
async fn g<const N: usize>(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
