//! Waiters in tasks of their own.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use lock_core::{LockError, LockGuard, LockRequest};
use test_support::fixtures::{SOON, queue_length};
use test_support::{RedisServer, completes_within, eventually_async};
use tokio::task::JoinHandle;

/// A waiter in a task of its own.
pub type Waiter = JoinHandle<Result<LockGuard, LockError>>;

/// Starts a waiter for [`NAME`](test_support::fixtures::NAME), and returns it when the queue has
/// this many entries.
pub async fn start_waiter(server: &RedisServer, request: LockRequest, entries: i64) -> Waiter {
    let waiter = tokio::spawn(request.acquire());
    eventually_async(SOON, async || queue_length(server) == entries).await;
    waiter
}

/// Returns the guard of a waiter that must get the lock within this time.
pub async fn granted(within: Duration, waiter: Waiter) -> LockGuard {
    let granted = completes_within(within, waiter).await;
    let guard = granted.unwrap_or_else(|| panic!("the waiter got no lock within {within:?}"));
    guard.unwrap().unwrap()
}

/// Polls a future once.
pub async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx))).await
}
