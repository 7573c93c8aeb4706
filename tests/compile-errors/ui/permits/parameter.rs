use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", permits = count)]
async fn f(count: u32) -> Result<(), LockError> {
    let _ = count;
    Ok(())
}

fn main() {}
