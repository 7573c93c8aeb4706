//! Tasks that take turns with one lock, and threads that disturb them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use lock_core::LockManager;
use test_support::fixtures::{NAME, SOON};
use tokio::task::JoinSet;

/// Runs this many sections in each task on all managers, and checks that no two sections overlap. A
/// failed release is no error here.
pub(super) async fn take_turns(
    managers: &[LockManager],
    tasks: usize,
    rounds: usize,
    section: Duration,
) {
    let inside = Arc::new(AtomicBool::new(false));
    let mut running = JoinSet::new();
    for task in 0..tasks {
        let locks = managers[task % managers.len()].clone();
        let inside = Arc::clone(&inside);
        running.spawn(async move {
            for _ in 0..rounds {
                let request = locks.lock(NAME).wait(SOON);
                let body = async |_: &_| {
                    assert!(!inside.swap(true, Ordering::AcqRel), "two sections overlap");
                    tokio::time::sleep(section).await;
                    inside.store(false, Ordering::Release);
                };
                request.run(body).await.unwrap();
            }
        });
    }
    while let Some(task) = running.join_next().await {
        task.unwrap();
    }
}

/// A thread that repeats an action until it is dropped.
pub(super) struct Storm {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Storm {
    pub(super) fn new(pause: Duration, mut act: impl FnMut() + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let rounds = Arc::new(AtomicU64::new(0));
        let thread = thread::spawn({
            let (stop, rounds) = (Arc::clone(&stop), Arc::clone(&rounds));
            move || {
                while !stop.load(Ordering::Acquire) {
                    act();
                    rounds.fetch_add(1, Ordering::Release);
                    thread::sleep(pause);
                }
            }
        });
        Self {
            stop,
            rounds,
            thread: Some(thread),
        }
    }

    pub(super) fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Acquire)
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
