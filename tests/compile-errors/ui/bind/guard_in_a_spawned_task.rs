use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", bind = held)]
async fn f() -> Result<(), LockError> {
    tokio::spawn(async move { held.is_lost() });
    Ok(())
}

fn main() {}
