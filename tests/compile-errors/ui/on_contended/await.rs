use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", on_contended = |_| { other().await; Ok(()) })]
async fn f() -> Result<(), LockError> {
    Ok(())
}

async fn other() {}

fn main() {}
