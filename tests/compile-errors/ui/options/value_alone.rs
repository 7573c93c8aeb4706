use lock_core::{Lock, LockError, distributed_lock};

#[distributed_lock(name = "x", exclusive, skip, never, background)]
async fn f() -> Result<(), LockError> {
    Ok(())
}

#[derive(Lock)]
#[lock(name = "x", read_write)]
struct X;

fn main() {}
