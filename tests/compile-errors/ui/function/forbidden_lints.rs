#![forbid(unused_variables, unused_mut, unused_assignments)]

use lock_core::{LockError, LockManager, distributed_lock};

// No lint of a parameter follows, and the expansion contains no `allow`, which `forbid` would refuse.
#[distributed_lock(name = "order:{order_id}", ttl = "30", bind = held, manager = next(&mut all))]
async fn f(
    order_id: u64,
    mut all: Vec<LockManager>,
    (mut count, by): (u8, u8),
) -> Result<(), LockError> {
    held.renew().await?;
    count += by;
    drop(count);
    Ok(())
}

fn next(all: &mut Vec<LockManager>) -> LockManager {
    all.pop().unwrap()
}

fn main() {}
