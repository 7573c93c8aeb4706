use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "cart", hash_tag = "{usr}")]
async fn f(user: u64) -> Result<(), LockError> {
    let _ = user;
    Ok(())
}

fn main() {}
