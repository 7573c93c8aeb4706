//! Bounded waiting for a condition.

use std::thread;
use std::time::{Duration, Instant};

use lock_core::LockManager;

/// Time between two looks: short against any lease a test uses, long against a context switch.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Waits until `condition` holds.
///
/// Blocks the thread: inside an async test use [`eventually_async`].
///
/// # Panics
///
/// If the condition does not hold within the given time.
#[track_caller]
pub fn eventually(within: Duration, mut condition: impl FnMut() -> bool) {
    eventually_some(within, || condition().then_some(()));
}

/// Waits until `look` has an answer, and returns it.
///
/// # Panics
///
/// If there is none within the given time.
#[track_caller]
pub fn eventually_some<T>(within: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let mut answer = None;
    let came = holds_within(within, || {
        answer = look();
        answer.is_some()
    });
    assert!(
        came,
        "what the test waits for did not come within {within:?}"
    );
    answer.expect("it came")
}

/// Whether `condition` holds by then.
pub(crate) fn holds_within(within: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    loop {
        // Late is read before the look, so that a thread that was kept off the processor for the
        // whole time still looks once more.
        let late = started.elapsed() >= within;
        if condition() {
            return true;
        }
        if late {
            return false;
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Waits until an async `condition` holds, and lets other tasks run meanwhile.
///
/// The bound is real time even when tokio's clock is paused.
///
/// # Panics
///
/// If the condition does not hold within the given time.
pub async fn eventually_async(within: Duration, mut condition: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    loop {
        let late = started.elapsed() >= within;
        if condition().await {
            return;
        }
        assert!(
            !late,
            "what the test waits for did not come within {within:?}"
        );
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Bound on the end of all releases, for tests that say nothing about how long they take.
const SHUTDOWN: Duration = Duration::from_secs(20);

/// Waits until nothing is left to be released or cancelled.
///
/// # Panics
///
/// If that takes longer than 20 s.
pub async fn shut_down(locks: &LockManager) {
    let started = Instant::now();
    while let Err(incomplete) = locks.shutdown().await {
        assert!(started.elapsed() < SHUTDOWN, "{incomplete}");
    }
}
