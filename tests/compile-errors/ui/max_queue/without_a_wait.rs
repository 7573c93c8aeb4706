use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "report", wait = "0s", max_queue = 3)]
async fn report() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(name = "sweep", on_contended = skip, max_queue = 3)]
async fn sweep() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
