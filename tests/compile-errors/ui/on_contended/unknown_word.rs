use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", on_contended = wait)]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
