use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", once_per = std::time::Duration::from_millis(1))]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
