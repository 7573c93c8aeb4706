use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", release = later)]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
