//! Test attributes below the lock attribute. Above it they cannot work: see `tests/compile-errors`.

use lock_core::{LockError, LockManager, distributed_lock};

#[distributed_lock(name = "test", manager = LockManager::in_memory(), bind = held)]
#[tokio::test]
async fn test_may_hold_a_lock() -> Result<(), LockError> {
    tokio::task::yield_now().await;
    assert!(!held.is_lost());
    Ok(())
}

#[distributed_lock(name = "test", manager = LockManager::in_memory(), on_error = |e| panic!("{e}"))]
#[tokio::test(start_paused = true)]
async fn test_may_return_nothing() {
    tokio::time::sleep(std::time::Duration::from_secs(3600)).await;
}

#[distributed_lock(name = "test", manager = LockManager::in_memory())]
#[tokio::test]
async fn test_may_use_anyhow() -> anyhow::Result<()> {
    let one: u8 = "1".parse()?;
    anyhow::ensure!(one == 1);
    Ok(())
}

#[tokio::test]
async fn main_function_may_hold_a_lock() {
    #[distributed_lock(name = "main", manager = LockManager::in_memory())]
    #[tokio::main(flavor = "current_thread")]
    async fn main() -> Result<u8, LockError> {
        Ok(1)
    }
    let main = tokio::task::spawn_blocking(main).await;
    assert_eq!(main.expect("no panic").expect("free"), 1);
}
