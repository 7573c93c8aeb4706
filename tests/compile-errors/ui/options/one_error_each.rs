use lock_core::{Lock, LockError, distributed_lock};

#[derive(Lock)]
#[lock(name = "order:{id}")]
struct OrderLock {
    id: u64,
}

#[distributed_lock(lock OrderLock { id }, bind = held)]
async fn no_equals(id: u64) -> Result<(), LockError> {
    let _ = held.id;
    Ok(())
}

#[distributed_lock(lock(OrderLock { id }), bind = held)]
async fn a_call(id: u64) -> Result<(), LockError> {
    let _ = held.id;
    Ok(())
}

#[distributed_lock(name = "x", permits 4, weight = 2)]
async fn permits_without_equals() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(name = "x" permits = 4, weight = 2)]
async fn permits_without_comma() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(name = "x", permits = 4 weight = 2)]
async fn weight_without_comma() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(locks = OrderLock { id })]
async fn locks(id: u64) -> Result<(), LockError> {
    Ok(())
}

fn main() {}
