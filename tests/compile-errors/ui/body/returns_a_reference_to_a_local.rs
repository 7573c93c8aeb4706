use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x")]
async fn f(owned: String) -> Result<&'static str, LockError> {
    Ok(owned.as_str())
}

fn main() {}
