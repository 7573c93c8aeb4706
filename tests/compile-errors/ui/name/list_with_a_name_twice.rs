use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = ["a", "b", "a"])]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
