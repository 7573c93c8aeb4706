use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = ["a", 7])]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
