//! Periods in which the process, or its runtime, did not run.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::Recorder;
use crate::event::{Nanos, nanos};
use crate::sink::Sink;

/// The interval between two signs of life, and the longest delay that is not a stall.
const CHECK_EVERY: Duration = Duration::from_millis(20);
const LONGEST_DELAY: Duration = Duration::from_millis(80);

impl Recorder {
    /// Records periods in which this process, or the calling runtime, does not run, until the
    /// returned value is dropped. The checker allows a loss and a wait to be later by this time.
    ///
    /// A recorder of a manager on a server does so by itself. Call this method for a manager in
    /// memory, or when no tokio runtime was there when the recorder was made.
    ///
    /// A thread and a task read the clock every 20 ms. Use it with a real clock only: on a paused
    /// clock the time of a test jumps, and each jump would be a stall.
    ///
    /// # Panics
    /// Panics outside of a tokio runtime.
    pub fn watch_stalls(&self) -> StallWatch {
        StallWatch::start(&self.sink)
    }
}

impl StallWatch {
    pub(super) fn start(sink: &Arc<Sink>) -> Self {
        let is_stopped = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&is_stopped);
        let watched = Arc::downgrade(sink);
        thread::spawn(move || {
            let mut last = None;
            while !stopped.load(Ordering::Relaxed) {
                let Some(seen) = record_stall(&watched, last) else {
                    return;
                };
                last = Some(seen);
                thread::sleep(CHECK_EVERY);
            }
        });
        let watched = Arc::downgrade(sink);
        let task = tokio::spawn(async move {
            let mut last = None;
            while let Some(seen) = record_stall(&watched, last) {
                last = Some(seen);
                tokio::time::sleep(CHECK_EVERY).await;
            }
        });
        Self { is_stopped, task }
    }
}

/// Records the time since the last sign of life, if it is a stall. Returns the current sign of life.
fn record_stall(sink: &Weak<Sink>, last: Option<Nanos>) -> Option<Nanos> {
    let sink = sink.upgrade()?;
    let now = sink.now();
    if let Some(last) = last
        && now.saturating_sub(last) > nanos(CHECK_EVERY + LONGEST_DELAY)
    {
        sink.write_stall(last, now);
    }
    Some(now)
}

/// Records stalls until it is dropped. Made by [`Recorder::watch_stalls`].
#[derive(Debug)]
#[must_use = "no stall is recorded after this value is dropped"]
pub struct StallWatch {
    is_stopped: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Drop for StallWatch {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.task.abort();
    }
}
