use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", once_per = "0s")]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
