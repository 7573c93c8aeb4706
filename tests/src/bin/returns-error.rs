//! A program whose `main` returns the error of a lock: it acquires the lock that its argument names, once, on
//! the server that `DISTRIBUTED_LOCK_URL` names.

use std::time::Duration;

use lock_core::{LockError, LockManager};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), LockError> {
    let locks = LockManager::current_or_connect().await?;
    let name = std::env::args().nth(1).unwrap_or_default();
    let guard = locks.lock(name).wait(Duration::ZERO).acquire().await?;
    guard.release().await
}
