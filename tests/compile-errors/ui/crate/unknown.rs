use lock_core::{Lock, LockError, distributed_lock, lock_name};
use std::time::Duration;

#[derive(Lock)]
#[lock(name = "order:{id}", ttl = "5s", crate = ::nope)]
struct OrderLock {
    id: u64,
}

#[derive(Lock)]
#[lock(name = lock_name!("page:{}", self.0), permits = 2, crate = crate::nope)]
struct Page(u64);

const LEASE: Duration = Duration::from_secs(5);

#[distributed_lock(
    name = "order:{id}",
    ttl = LEASE,
    wait = "1s",
    bind = held,
    on_contended = |_| Ok(()),
    on_error = |e| Err(e),
    crate = ::nope::lock_core
)]
async fn ship(id: u64) -> Result<(), LockError> {
    let _ = held.key();
    Ok(())
}

#[distributed_lock(lock = OrderLock { id }, bind = held, crate = ::nope)]
async fn pay(id: u64) -> Result<(), LockError> {
    let _ = held.id;
    Ok(())
}

#[distributed_lock(name = ["a", "b"], bind = both, on_contended = skip, crate = crate::nope)]
async fn both() -> Result<(), LockError> {
    let _ = both.guards();
    Ok(())
}

#[distributed_lock(name = "x", ttl = "1", bind = held, crate = ::nope)]
async fn another_error() -> Result<(), LockError> {
    let _ = held.key();
    Ok(())
}

fn main() {}
