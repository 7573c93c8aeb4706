//! When the process, or its runtime, did not run.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::event::{Nanos, Recorder, Stall, nanos, now};

/// The canary's step, and how late it may be before it is a stall.
const CHECK_EVERY: Duration = Duration::from_millis(20);
const LONGEST_DELAY: Duration = Duration::from_millis(80);

/// A thread of its own: late when the process was stopped or got no processor.
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

/// A task among the others: late when the runtime is.
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
