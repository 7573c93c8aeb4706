use lock_core::{LockError, distributed_lock};

#[distributed_lock(name = "x", on_contended = skip)]
async fn f() -> Result<String, LockError> {
    Ok(String::new())
}

fn main() {}
