use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", release = "background")]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
