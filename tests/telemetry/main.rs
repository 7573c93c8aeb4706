//! Spans, events, metrics and observers, on a real server.

mod grafana;
mod labels;
mod observers;
mod prometheus;
mod recorder;
mod scenarios;
mod spans;
mod subscriber;
mod tables;

use std::future::Future;
use std::sync::{Mutex, PoisonError};

use test_support::fixtures::multi_thread_runtime;

/// Runs a test while no other test of this program runs: recorder and subscriber are those of the
/// process.
fn alone<T>(test: impl Future<Output = T>) -> T {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    recorder::install();
    subscriber::install();
    multi_thread_runtime(2).block_on(test)
}
