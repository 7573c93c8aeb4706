use lock_core::{Lock, LockError, distributed_lock};

#[derive(Lock)]
#[lock(name = "account:{0}")]
struct Account(u64);

#[distributed_lock(lock = [Account(from), Account(to)], bind = both)]
async fn list(from: u64, to: u64) -> Result<(), LockError> {
    let _ = (from, to, both.guards());
    Ok(())
}

#[distributed_lock(lock = Account(from), lock = Account(to))]
async fn twice(from: u64, to: u64) -> Result<(), LockError> {
    let _ = (from, to);
    Ok(())
}

fn main() {}
