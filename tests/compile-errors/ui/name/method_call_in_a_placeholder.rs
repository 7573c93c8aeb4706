use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "{id.to_string()}")]
async fn f(id: u64) -> Result<(), LockError> {
    let _ = id;
    Ok(())
}

fn main() {}
