use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "{{user}}:cart", hash_tag = "user")]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
