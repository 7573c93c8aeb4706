use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = vec!["a:{x}", "b:{x}"], bind = held)]
async fn vec(x: u64) -> Result<(), LockError> {
    let _ = (x, held.guards());
    Ok(())
}

#[distributed_lock(name = &["a:{x}", "b:{x}"])]
async fn slice(x: u64) -> Result<(), LockError> {
    let _ = x;
    Ok(())
}

#[distributed_lock(name = ("a:{x}", "b:{x}"))]
async fn tuple(x: u64) -> Result<(), LockError> {
    let _ = x;
    Ok(())
}

#[distributed_lock(name = "a:{x}", name = "b:{x}")]
async fn twice(x: u64) -> Result<(), LockError> {
    let _ = x;
    Ok(())
}

fn main() {}
