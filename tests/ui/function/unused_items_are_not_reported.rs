#![deny(warnings)]

use lock_core::{LockError, distributed_lock};

// Neither the parameter nor the guard is reported: both are used when the fault is gone.
#[distributed_lock(name = "order:{order_id}", ttl = "30", bind = held)]
async fn f(order_id: u64, mut count: u8) -> Result<(), LockError> {
    held.renew().await?;
    count += 1;
    drop(count);
    Ok(())
}

fn main() {}
