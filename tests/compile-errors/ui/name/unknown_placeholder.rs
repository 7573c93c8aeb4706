use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "{customer}")]
async fn f(a: u8, (b, _): (u8, u8)) -> Result<(), LockError> {
    let _ = (a, b);
    Ok(())
}

fn main() {}
