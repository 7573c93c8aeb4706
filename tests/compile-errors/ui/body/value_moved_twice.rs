use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x")]
async fn f(owned: String) -> Result<(), LockError> {
    drop(owned);
    drop(owned);
    Ok(())
}

fn main() {}
