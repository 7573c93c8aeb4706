use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "{{order}}:42:h")]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
