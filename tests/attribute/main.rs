//! The attribute: its options, names, signatures and return types. The lints are part of the test:
//! an annotated function must compile without warnings if the plain function does.

#![deny(warnings, clippy::pedantic, clippy::nursery)]
#![forbid(unsafe_code)]
#![allow(
    clippy::redundant_pub_crate,
    reason = "the attribute keeps the visibility that rustc requires here"
)]

mod answers;
mod bind;
mod declared;
mod declared_hygiene;
mod documentation;
mod drops;
mod durations;
mod forbidden_lints;
mod forms;
mod future_size;
mod hygiene;
mod kinds;
mod leaving_the_body;
mod lists;
mod locking;
mod moved;
mod name_values;
mod names;
mod on_error;
mod once_per;
mod options;
mod outside;
mod run_time;
mod signatures;

use std::time::Duration;

use lock_core::LockManager;

/// Returns whether the lock `name` is held.
async fn is_held(locks: &LockManager, name: &str) -> bool {
    let free = locks.lock(name).try_acquire().await;
    free.expect("the in-memory backend is always available")
        .is_none()
}

/// Waits until the lock `name` is free: a dropped guard releases in the background.
async fn becomes_free(locks: &LockManager, name: &str) {
    let guard = locks
        .lock(name)
        .wait(Duration::from_secs(5))
        .acquire()
        .await;
    drop(guard.expect("the lock is released"));
}
