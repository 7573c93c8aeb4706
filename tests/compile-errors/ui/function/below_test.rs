use lock_core::{LockError, distributed_lock};

#[tokio::test]
#[distributed_lock(name = "x")]
async fn f() -> Result<(), LockError> {
    Ok(())
}

const _: Option<LockError> = None;

fn main() {}
