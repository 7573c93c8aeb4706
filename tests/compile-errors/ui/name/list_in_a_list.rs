use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = ["a", ["b"]])]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
