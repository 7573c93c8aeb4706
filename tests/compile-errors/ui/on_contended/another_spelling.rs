use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", on_contended = None)]
async fn f() -> Result<Option<u8>, LockError> {
    Ok(None)
}

#[distributed_lock(name = "x", on_contended = Skip, on_lost = Continue)]
async fn g() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(name = "x", on_contended = OnContended::Skip, mode = "Read")]
async fn h() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
