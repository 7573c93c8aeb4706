use lock_core::{Lock, LockError, distributed_lock};

mod reexport {
    pub(crate) use lock_core::LockError;
}

#[derive(Lock)]
#[lock(name = "a", crate = crate::reexport)]
struct A;

#[distributed_lock(name = "x", bind = held, crate = crate::reexport)]
async fn f() -> Result<(), reexport::LockError> {
    let _ = held.key();
    Ok(())
}

#[distributed_lock(name = "x", crate = ::std)]
async fn g() -> Result<(), LockError> {
    Ok(())
}

fn main() {}
