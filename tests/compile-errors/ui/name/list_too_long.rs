use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = [id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id, id])]
async fn f(id: String) -> Result<(), LockError> {
    let _ = id;
    Ok(())
}

fn main() {}
