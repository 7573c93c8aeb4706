//! The ways in which a body ends: with its value, an error, a panic, a drop, or a lost lock.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lock_core::{LockError, LockManager, distributed_lock};
use test_support::RedisServer;

use crate::{becomes_free, is_held};

#[derive(Debug, PartialEq, Eq)]
enum Failure {
    Ours(u8),
    Lock(String),
}

impl From<LockError> for Failure {
    fn from(error: LockError) -> Self {
        Self::Lock(error.to_string())
    }
}

const fn fails(code: u8) -> Result<u8, Failure> {
    if code == 0 {
        Ok(1)
    } else {
        Err(Failure::Ours(code))
    }
}

#[distributed_lock(name = "leave", wait = "0s", manager = locks)]
async fn question_mark(locks: &LockManager, code: u8) -> Result<u8, Failure> {
    let one = fails(code)?;
    tokio::task::yield_now().await;
    Ok(one + 1)
}

#[distributed_lock(name = "leave", wait = "0s", manager = locks)]
async fn early(locks: &LockManager, early: bool) -> Result<u8, Failure> {
    if early {
        return Ok(1);
    }
    Ok(2)
}

#[tokio::test]
async fn end_question_mark_or_return_keeps_the_result() {
    let locks = LockManager::in_memory();
    assert_eq!(question_mark(&locks, 0).await, Ok(2));
    assert!(!is_held(&locks, "leave").await);
    assert_eq!(question_mark(&locks, 9).await, Err(Failure::Ours(9)));
    assert!(!is_held(&locks, "leave").await);
    assert_eq!(early(&locks, true).await, Ok(1));
    assert!(!is_held(&locks, "leave").await);
    assert_eq!(early(&locks, false).await, Ok(2));
    assert!(!is_held(&locks, "leave").await);
}

#[tokio::test]
async fn lock_error_before_the_body_is_converted() {
    let locks = LockManager::in_memory();
    let _guard = locks.lock("leave").acquire().await.expect("free");
    assert!(matches!(early(&locks, true).await, Err(Failure::Lock(_))));
}

#[distributed_lock(name = "leave", wait = "0s", manager = locks)]
async fn panics(locks: &LockManager) -> Result<(), LockError> {
    tokio::task::yield_now().await;
    assert!(!is_held(locks, "leave").await, "on purpose");
    Ok(())
}

#[tokio::test]
async fn panic_releases_the_lock() {
    let locks = LockManager::in_memory();
    let caught = {
        let mut running = pin!(panics(&locks));
        std::future::poll_fn(move |context| {
            let poll = || running.as_mut().poll(context);
            let poll = std::panic::catch_unwind(AssertUnwindSafe(poll));
            poll.map_or(Poll::Ready(true), |poll| poll.map(|_| false))
        })
        .await
    };
    assert!(caught);
    becomes_free(&locks, "leave").await;
}

struct Dropped<'a>(&'a AtomicBool);

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[distributed_lock(name = "leave", wait = "0s", manager = locks)]
async fn endless(locks: &LockManager, dropped: &AtomicBool) -> Result<(), LockError> {
    let _dropped = Dropped(dropped);
    std::future::pending().await
}

#[tokio::test]
async fn dropping_the_future_releases_the_lock() {
    let locks = LockManager::in_memory();
    let dropped = AtomicBool::new(false);
    {
        let running = tokio::time::timeout(Duration::from_millis(50), endless(&locks, &dropped));
        running.await.expect_err("endless");
    }
    assert!(dropped.load(Ordering::SeqCst));
    becomes_free(&locks, "leave").await;
}

#[distributed_lock(name = "leave", ttl = "300ms", manager = locks)]
async fn robbed(
    locks: &LockManager,
    server: &RedisServer,
    dropped: &AtomicBool,
) -> Result<(), LockError> {
    let _dropped = Dropped(dropped);
    server.cli(&["DEL", "lock:leave"]);
    std::future::pending().await
}

#[distributed_lock(name = "leave", ttl = "300ms", manager = locks, on_error = |e| Some(e))]
async fn robbed_of_another(locks: &LockManager, server: &RedisServer) -> Option<LockError> {
    server.cli(&["DEL", "lock:leave"]);
    std::future::pending().await
}

#[tokio::test]
async fn lost_lock_ends_the_body_with_an_error() {
    let server = RedisServer::start();
    let locks = LockManager::connect(&server.url())
        .await
        .expect("the server is running");
    let dropped = AtomicBool::new(false);
    let soon = Duration::from_secs(10);
    let answer = tokio::time::timeout(soon, robbed(&locks, &server, &dropped)).await;
    assert!(
        matches!(answer, Ok(Err(LockError::Lost { .. }))),
        "{answer:?}"
    );
    assert!(dropped.load(Ordering::SeqCst));
    let answer = tokio::time::timeout(soon, robbed_of_another(&locks, &server)).await;
    assert!(
        matches!(answer, Ok(Some(LockError::Lost { .. }))),
        "{answer:?}"
    );
}

#[distributed_lock(name = "leave", wait = "0s", manager = locks)]
async fn takes<'a>(
    locks: &LockManager,
    used: Dropped<'a>,
    _unused: Dropped<'a>,
) -> Result<(), LockError> {
    drop(used);
    Ok(())
}

#[tokio::test]
async fn end_of_the_body_drops_its_arguments() {
    let locks = LockManager::in_memory();
    let (used, unused) = (AtomicBool::new(false), AtomicBool::new(false));
    takes(&locks, Dropped(&used), Dropped(&unused))
        .await
        .expect("free");
    assert!(used.load(Ordering::SeqCst) && unused.load(Ordering::SeqCst));
}

struct WhenDropped<'a>(&'a LockManager, &'a AtomicBool);

impl WhenDropped<'_> {
    fn was_held(&self) -> bool {
        self.1.load(Ordering::SeqCst)
    }
}

impl Drop for WhenDropped<'_> {
    fn drop(&mut self) {
        let mut attempt = pin!(is_held(self.0, "leave"));
        let mut context = Context::from_waker(Waker::noop());
        let held = loop {
            if let Poll::Ready(held) = attempt.as_mut().poll(&mut context) {
                break held;
            }
        };
        self.1.store(held, Ordering::SeqCst);
    }
}

#[distributed_lock(name = "leave", wait = "0s", manager = locks)]
async fn uses(locks: &LockManager, argument: WhenDropped<'_>) -> Result<bool, LockError> {
    Ok(argument.was_held())
}

#[tokio::test]
async fn used_arguments_are_dropped_before_the_release() {
    let locks = LockManager::in_memory();
    let held = AtomicBool::new(false);
    assert!(
        !uses(&locks, WhenDropped(&locks, &held))
            .await
            .expect("free")
    );
    assert!(
        held.load(Ordering::SeqCst),
        "the lock was held when the argument was dropped"
    );
}

#[distributed_lock(name = "leave", wait = "0s", manager = locks)]
async fn one_expression(locks: &LockManager) -> Result<u8, LockError> {
    Ok(1)
}

#[tokio::test]
async fn body_of_one_expression_returns_its_value() {
    assert_eq!(
        one_expression(&LockManager::in_memory())
            .await
            .expect("free"),
        1
    );
}
