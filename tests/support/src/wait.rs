//! Bounded waiting for a condition. Each bound is longer by the time in which this process was [kept from running](Stalls).

use std::pin::pin;
use std::thread;
use std::time::{Duration, Instant};

use crate::stalls::Stalls;

/// The time between two checks: short compared with any lease of a test, long compared with a
/// context switch.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);

/// Waits until `condition` holds.
///
/// Blocks the thread; async tests use [`eventually_async`].
///
/// # Panics
///
/// Panics if the condition does not hold within the given time.
#[track_caller]
pub fn eventually(within: Duration, mut condition: impl FnMut() -> bool) {
    eventually_some(within, || condition().then_some(()));
}

/// Waits until `check` returns a value, and returns it.
///
/// # Panics
///
/// Panics if `check` returns no value within the given time.
#[track_caller]
pub fn eventually_some<T>(within: Duration, mut check: impl FnMut() -> Option<T>) -> T {
    let mut value = None;
    let is_there = holds_within(within, || {
        value = check();
        value.is_some()
    });
    assert!(is_there, "the condition did not hold within {within:?}");
    value.expect("the check returned a value")
}

/// Returns whether `condition` holds within the given time.
pub fn holds_within(within: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let (started, stalls) = (Instant::now(), Stalls::from_now());
    loop {
        // The time is read before the check, so that a thread that did not run for the whole time
        // still checks once more.
        let late = started.elapsed() >= within + stalls.so_far();
        if condition() {
            return true;
        }
        if late {
            return false;
        }
        thread::sleep(CHECK_INTERVAL);
    }
}

/// Returns the output of a future, or `None` if it doesn't complete within the given time.
pub async fn completes_within<F: Future>(within: Duration, future: F) -> Option<F::Output> {
    let (started, stalls) = (tokio::time::Instant::now(), Stalls::from_now());
    let mut future = pin!(future);
    loop {
        let left = (within + stalls.so_far()).saturating_sub(started.elapsed());
        let output = tokio::time::timeout(left, &mut future).await;
        if output.is_ok() || left.is_zero() {
            return output.ok();
        }
    }
}

/// Waits until an async `condition` holds, and lets other tasks run meanwhile.
///
/// The bound is real time even when tokio's clock is paused.
///
/// # Panics
///
/// Panics if the condition does not hold within the given time.
pub async fn eventually_async(within: Duration, mut condition: impl AsyncFnMut() -> bool) {
    let (started, stalls) = (Instant::now(), Stalls::from_now());
    loop {
        let late = started.elapsed() >= within + stalls.so_far();
        if condition().await {
            return;
        }
        assert!(!late, "the condition did not hold within {within:?}");
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}
