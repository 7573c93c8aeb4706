use lock_core::{LockError, distributed_lock};

const SECONDS: u64 = 5;

#[distributed_lock(name = "x", wait = SECONDS)]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
