use lock_core::{LockError, distributed_lock};

const WEIGHT: u32 = 3;

#[distributed_lock(name = "x", permits = 2, weight = WEIGHT)]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
