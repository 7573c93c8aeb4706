//! The global manager. One test in a process of its own: a global manager cannot be removed.

use lock_core::{LockError, LockManager, distributed_lock};

#[distributed_lock(name = "job", wait = "0s")]
async fn job() -> Result<(), LockError> {
    Ok(())
}

#[tokio::test]
async fn one_manager_is_installed_once_and_its_clones_again() {
    let locks = LockManager::in_memory();
    locks.install_global().expect("none is installed");
    locks.install_global().expect("it is the installed one");
    let clone = locks.clone();
    clone.install_global().expect("it is the installed one");

    let other = LockManager::in_memory();
    let refused = other.install_global().expect_err("another is installed");
    assert!(matches!(refused, LockError::AlreadyInstalled));
    assert_eq!(
        refused.to_string(),
        "a global lock manager is already installed; install one manager once, in `main`; in tests \
         and app builders use `ScopeLayer` or `LockManager::scope`"
    );

    // The first one stays installed, and a scope goes before it.
    let _held = locks.lock("job").acquire().await.expect("it is free");
    assert!(job().await.expect_err("it is held").is_contended());
    other.scope(job()).await.expect("it is free in the scope");
}
