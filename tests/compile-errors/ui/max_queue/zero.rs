use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "report", wait = "5s", max_queue = 0)]
async fn report() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
