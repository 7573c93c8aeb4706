use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", permits = 2, once_per = "1h")]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
