use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", renew = sometimes)]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
