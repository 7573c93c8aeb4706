use lock_core::{LockError, distributed_lock};

#[distributed_lock(names = ["a:{id}", "b:{id}"])]
async fn f(id: u64) -> Result<(), LockError> {
    let _ = id;
    Ok(())
}

fn main() {}
