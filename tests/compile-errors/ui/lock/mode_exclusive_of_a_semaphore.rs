use lock_core::{Lock, LockError, distributed_lock};

#[derive(Lock)]
#[lock(name = "mailer", permits = 4)]
struct Mailer;

#[distributed_lock(lock = Mailer, mode = exclusive)]
async fn f() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
