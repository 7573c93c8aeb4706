//! The option `on_error`.

use std::sync::atomic::{AtomicBool, Ordering};

use lock_core::{LockError, LockManager, distributed_lock};

#[distributed_lock(
    name = "mapped",
    manager = locks,
    on_error = |e| if e.is_contended() { code } else { 0 },
)]
async fn mapped(locks: &LockManager, code: u16, owned: String) -> u16 {
    drop(owned);
    code + 1
}

#[tokio::test]
async fn on_error_handler_gives_the_return_value() {
    let locks = LockManager::in_memory();
    assert_eq!(mapped(&locks, 409, String::new()).await, 410);
    let _guard = locks.lock("mapped").acquire().await.expect("free");
    assert_eq!(mapped(&locks, 409, String::new()).await, 409);
}

#[derive(Debug, PartialEq, Eq)]
enum Status {
    Done,
    Busy,
}

fn busy(_: LockError) -> Status {
    Status::Busy
}

#[distributed_lock(name = "mapped", wait = "0s", manager = locks, on_error = |e| busy(e))]
async fn without_a_result(locks: &LockManager) -> Status {
    Status::Done
}

#[distributed_lock(name = "mapped", wait = "0s", manager = locks, on_error = |e| drop(e))]
async fn nothing(locks: &LockManager, ran: &AtomicBool) {
    ran.store(true, Ordering::SeqCst);
}

#[tokio::test]
async fn on_error_works_with_any_return_type() {
    let locks = LockManager::in_memory();
    let ran = AtomicBool::new(false);
    let guard = locks.lock("mapped").acquire().await.expect("free");
    assert_eq!(without_a_result(&locks).await, Status::Busy);
    nothing(&locks, &ran).await;
    assert!(!ran.load(Ordering::SeqCst));
    guard.release().await.expect("held");
    assert_eq!(without_a_result(&locks).await, Status::Done);
    nothing(&locks, &ran).await;
    assert!(ran.load(Ordering::SeqCst));
}

#[distributed_lock(name = "mapped", wait = "0s", manager = locks, on_error = |e| Err(format!("{e}!"))?)]
async fn question(locks: &LockManager) -> Result<u8, Box<dyn std::error::Error + Send + Sync>> {
    Ok(1)
}

#[tokio::test]
async fn on_error_handler_may_use_question_marks() {
    let locks = LockManager::in_memory();
    let _guard = locks.lock("mapped").acquire().await.expect("free");
    let error = question(&locks).await.expect_err("held");
    assert!(error.to_string().ends_with('!'));
}
