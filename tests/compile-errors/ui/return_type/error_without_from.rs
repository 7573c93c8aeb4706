use lock_core::{LockError, distributed_lock};

#[derive(Debug)]
struct ShopError;

#[distributed_lock(name = "x")]
async fn f() -> Result<u8, ShopError> {
    Ok(1)
}

const _: Option<LockError> = None;

fn main() {}
