use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", once_per = "8785h")]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
