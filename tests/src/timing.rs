//! Bounds on when outcomes and losses are reported.

use std::fmt::Debug;
use std::future::Future;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use lock_core::LockGuard;
use test_support::Stalls;
use test_support::fixtures::{NOTICE, SOON};

/// The time between two looks at a lock that is going to be lost.
const TICK: Duration = Duration::from_millis(5);

/// Returns the outcome of a future. It must complete at most [`NOTICE`] after `limit`.
pub async fn in_time<T: Debug>(limit: Duration, outcome: impl Future<Output = T>) -> T {
    let (started, stalls) = (Instant::now(), Stalls::from_now());
    let outcome = outcome.await;
    let took = started.elapsed();
    assert!(
        took <= limit + NOTICE + stalls.so_far(),
        "{took:?} instead of {limit:?}: {outcome:?}"
    );
    outcome
}

/// Waits for the loss of a lock. Every way to learn of it must report it by the end of the lease,
/// as this side last knew it, and no more than [`NOTICE`] later.
pub async fn lost_in_time(held: &LockGuard) {
    let (started, stalls) = (Instant::now(), Stalls::from_now());
    let mut lost = held.lost();
    let mut lease_ends = started + held.remaining();
    loop {
        let is_reported = tokio::time::timeout(TICK, &mut lost).await.is_ok();
        let now = Instant::now();
        let remaining = held.remaining();
        assert!(
            !remaining.is_zero() || held.is_lost(),
            "neither held nor lost"
        );
        if is_reported {
            assert!(
                held.is_lost(),
                "a loss was reported, and the lock is not lost"
            );
            break;
        }
        if !remaining.is_zero() {
            lease_ends = now + remaining;
        }
        assert!(started.elapsed() < SOON, "the lock is never lost");
    }
    let late = Instant::now().saturating_duration_since(lease_ends);
    assert!(
        late <= NOTICE + stalls.so_far(),
        "reported {late:?} after the end of the lease"
    );
}

/// Checks for this time that the lock is not lost.
pub async fn assert_held_for(span: Duration, held: &LockGuard) {
    let until = Instant::now() + span;
    while Instant::now() < until {
        assert!(!held.is_lost());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Returns the result of a program that may hang. It fails the test after `limit`.
pub fn run_within<T: Send + 'static>(
    limit: Duration,
    program: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (sender, receiver) = mpsc::channel();
    let program = thread::spawn(move || {
        let result = program();
        let _ = sender.send(());
        result
    });
    match receiver.recv_timeout(limit) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("the program hangs"),
        _ => program.join().expect("the program does not panic"),
    }
}
