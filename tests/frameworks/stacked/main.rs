//! The attribute together with attributes of other crates, in every supported order. `tests/compile-errors` has
//! the orders that cannot work.

#![deny(warnings, clippy::pedantic, clippy::nursery)]

#[allow(
    clippy::future_not_send,
    reason = "actix responses stay on their thread"
)]
mod actix;
mod async_traits;
#[allow(
    clippy::unused_async,
    reason = "the checks that `#[debug_handler]` adds do not await"
)]
mod axums;
mod declared;
mod spans;
mod test_attributes;

use lock_core::LockManager;

async fn is_held(locks: &LockManager, name: &str) -> bool {
    let free = locks.lock(name).try_acquire().await;
    free.expect("the in-memory backend is always available")
        .is_none()
}
