use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", permits = 4, weight = "2")]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
