//! The attribute together with those of other crates, in every order that can work. What cannot
//! work is in `tests/ui`.

#![deny(warnings, clippy::pedantic, clippy::nursery)]

#[allow(
    clippy::future_not_send,
    reason = "what actix answers with stays on its thread"
)]
mod actix;
mod async_traits;
#[allow(
    clippy::unused_async,
    reason = "the checks that `#[debug_handler]` adds do not await"
)]
mod axums;
mod spans;
mod test_attributes;

use lock_core::LockManager;

async fn is_held(locks: &LockManager, name: &str) -> bool {
    let free = locks.lock(name).try_acquire().await;
    free.expect("a memory backend is never down").is_none()
}
