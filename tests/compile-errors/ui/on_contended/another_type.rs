use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", on_contended = |e| e.to_string())]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
