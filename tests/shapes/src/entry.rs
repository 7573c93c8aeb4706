//! Functions that start their own runtime. They run outside of the runtime of the other shapes.
#![deny(warnings)]

use lock_core::LockError;

use crate::support::{Tracked, report};

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(
        name = "entry:tokio_main",
        manager = lock_core::LockManager::in_memory(),
    )
)]
#[tokio::main(flavor = "current_thread")]
async fn tokio_main(a: Tracked) -> Result<usize, LockError> {
    let local = Tracked("local");
    Ok(a.length() + local.length())
}

#[cfg_attr(
    feature = "attribute",
    lock_core::distributed_lock(
        name = "entry:tokio_main_unit",
        manager = lock_core::LockManager::in_memory(),
        on_error = |e| crate::support::refused(e),
    )
)]
#[tokio::main(flavor = "current_thread")]
async fn tokio_main_unit(a: Tracked) {
    drop(a);
}

pub(crate) fn run() {
    let outcome = tokio_main(Tracked("a"));
    report("entry::tokio_main", &format!("{:?}", outcome));
    tokio_main_unit(Tracked("a"));
    report("entry::tokio_main_unit", "()");
}
