//! The attribute, option by option and return type by return type. The lints are part of the
//! test: an annotated function must be as clean as its author left it.

#![deny(warnings, clippy::pedantic, clippy::nursery)]
#![forbid(unsafe_code)]

mod answers;
mod drops;
mod forms;
mod hygiene;
mod names;
mod options;
mod outside;
mod run_time;

use std::time::Duration;

use lock_core::LockManager;

/// Whether somebody holds `name`.
async fn is_held(locks: &LockManager, name: &str) -> bool {
    let free = locks.lock(name).try_acquire().await;
    free.expect("a memory backend is never down").is_none()
}

/// Waits until nobody holds `name`: a dropped guard releases in the background.
async fn becomes_free(locks: &LockManager, name: &str) {
    let guard = locks
        .lock(name)
        .wait(Duration::from_secs(5))
        .acquire()
        .await;
    drop(guard.expect("the lock is released"));
}
