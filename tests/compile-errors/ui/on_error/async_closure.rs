use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", on_error = async |_| Ok(()))]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
