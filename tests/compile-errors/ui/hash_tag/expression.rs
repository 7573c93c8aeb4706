use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", hash_tag = format!("x"))]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
