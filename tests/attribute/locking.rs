//! The lock is held while the body runs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lock_core::{LockError, LockManager, distributed_lock};

use crate::is_held;

#[distributed_lock(name = "order:{id}", wait = "0s", manager = locks)]
async fn held(locks: &LockManager, id: u64) -> Result<bool, LockError> {
    Ok(is_held(locks, "order:7").await && !is_held(locks, "order:8").await && id == 7)
}

#[tokio::test]
async fn lock_is_held_while_the_body_runs_and_released_after() {
    let locks = LockManager::in_memory();
    assert!(held(&locks, 7).await.expect("free"));
    assert!(!is_held(&locks, "order:7").await);
}

#[tokio::test]
async fn body_does_not_run_while_another_caller_holds_the_lock() {
    let locks = LockManager::in_memory();
    let guard = locks.lock("order:7").acquire().await.expect("free");
    let answer = held(&locks, 7).await;
    assert!(answer.expect_err("held").is_contended());
    drop(guard);
}

#[distributed_lock(name = "slow", wait = "5s", ttl = "10s", manager = locks)]
async fn patient(locks: &LockManager, ran: &AtomicBool) -> Result<(), LockError> {
    ran.store(true, Ordering::SeqCst);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn call_waits_for_a_held_lock() {
    let locks = LockManager::in_memory();
    let guard = locks.lock("slow").acquire().await.expect("free");
    let ran = AtomicBool::new(false);
    let waiting = patient(&locks, &ran);
    let release = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!ran.load(Ordering::SeqCst), "the lock is held");
        guard.release().await.expect("held");
    };
    let (answer, ()) = tokio::join!(waiting, release);
    answer.expect("the lock was handed over");
    assert!(ran.load(Ordering::SeqCst));
}

#[tokio::test(start_paused = true)]
async fn call_waits_no_longer_than_its_wait() {
    let locks = LockManager::in_memory();
    let _guard = locks.lock("slow").acquire().await.expect("free");
    let ran = AtomicBool::new(false);
    let answer = patient(&locks, &ran).await;
    assert!(answer.expect_err("held").is_contended());
    assert!(!ran.load(Ordering::SeqCst));
}

#[distributed_lock(name = "order:{id}", wait = "60s", manager = locks)]
async fn within(locks: &LockManager, id: u64) -> Result<LockError, LockError> {
    held(locks, id + 1).await?;
    Ok(held(locks, id).await.expect_err("this task holds the lock"))
}

#[tokio::test]
async fn nested_call_for_the_same_lock_fails_at_once() {
    let answer = within(&LockManager::in_memory(), 7).await;
    assert!(
        matches!(answer, Ok(LockError::WouldDeadlock { .. })),
        "{answer:?}"
    );
}

#[distributed_lock(name = "unmanaged")]
async fn unmanaged() -> Result<(), LockError> {
    Ok(())
}

#[tokio::test]
async fn call_without_a_manager_is_an_error() {
    let answer = unmanaged().await;
    assert!(
        matches!(answer, Err(LockError::NotConfigured)),
        "{answer:?}"
    );
}
