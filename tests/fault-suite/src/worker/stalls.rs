//! Detects periods in which the process, or its runtime, did not run.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::event::{Nanos, Recorder, Stall, nanos, now};

/// The interval of the canary, and the longest delay that is not a stall.
const CHECK_EVERY: Duration = Duration::from_millis(20);
const LONGEST_DELAY: Duration = Duration::from_millis(80);

/// Watches from a separate thread: it is late when the process was stopped or got no CPU time.
pub(super) fn watch_process(worker: u32, recorder: &Arc<Recorder>) {
    let recorder = Arc::clone(recorder);
    thread::spawn(move || {
        let mut last = now();
        loop {
            thread::sleep(CHECK_EVERY);
            last = record_stall(worker, &recorder, last);
        }
    });
}

/// Watches from a task of the runtime: it is late when the runtime is blocked.
pub(super) async fn watch_runtime(worker: u32, recorder: Arc<Recorder>) {
    let mut last = now();
    loop {
        tokio::time::sleep(CHECK_EVERY).await;
        last = record_stall(worker, &recorder, last);
    }
}

pub(super) fn record_stall(worker: u32, recorder: &Recorder, last: Nanos) -> Nanos {
    let to = now();
    if to - last > nanos(CHECK_EVERY + LONGEST_DELAY) {
        let stall = Stall {
            worker,
            from: last,
            to,
        };
        recorder.write(&stall.to_line());
    }
    to
}
