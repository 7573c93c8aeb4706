use lock_core::{LockError, distributed_lock};

const WAITERS: u32 = 0;

#[distributed_lock(name = "report", wait = "5s", max_queue = WAITERS)]
async fn report() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
