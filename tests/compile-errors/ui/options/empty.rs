use lock_core::{LockError, distributed_lock};

#[distributed_lock]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
