use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = ["a", "b"], bind = both)]
async fn f() -> Result<(), LockError> {
    both.release().await?;
    Ok(())
}

fn main() {}
