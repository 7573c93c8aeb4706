use lock_core::{LockError, distributed_lock};

const PERMITS: u32 = 20_000;

#[distributed_lock(name = "x", permits = PERMITS)]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
