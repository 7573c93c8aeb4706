#![deny(warnings)]

use lock_core::{LockError, distributed_lock};

// The parameter and the guard are not reported as unused: they are used without the error.
#[distributed_lock(name = "order:{order_id}", ttl = "30", bind = held)]
async fn f(order_id: u64, mut count: u8) -> Result<(), LockError> {
    held.renew().await?;
    count += 1;
    drop(count);
    Ok(())
}

fn main() {}
