//! Measures how evenly tasks wait for one lock: `cargo bench -p benches --bench fairness`
//!
//! 8 tasks run 25 sections of 1 ms each, all with the same lock.
//!
//! - `p99_wait`: the 99th percentile of the waits divided by the median wait.
//! - `longest_wait`: the longest wait divided by the median wait.
//! - `p99_ahead`: the 99th percentile of the sections that other tasks ran during one wait. In the
//!   order of arrival, that is one section of each other task.
//! - `total`: the time of all sections, divided by 200 holds of 1 ms in a row without a lock and 200
//!   round trips. A PING measures a round trip, paced like the holds. Both are measured just before
//!   each run: a sleep of 1 ms often takes 2 ms.
//!
//! `loopback` and `proxy` are without and with a proxy that adds 1 ms to the round trip. In `one` all
//! tasks share a manager, and in `many` each task has its own. Each figure is the median of several
//! runs. The short form has one run, on the path `loopback`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use benches::contention::{NAME, PATHS, Target, connect};
use benches::figures::{median, percentile, ratio, report, report_at_most};
use benches::is_short;
use benches::round_trip::RoundTrip;
use lock_core::LockManager;
use test_support::fixtures::multi_thread_runtime;
use tokio::task::JoinSet;

const TASKS: usize = 8;
const ROUNDS: usize = 25;
const SECTION: Duration = Duration::from_millis(1);
const WAIT: Duration = Duration::from_secs(60);
const RUNS: usize = 7;
const SHORT_RUNS: usize = 1;

fn main() {
    let (paths, runs) = if is_short() {
        (&PATHS[..1], SHORT_RUNS)
    } else {
        (&PATHS[..], RUNS)
    };
    let runtime = multi_thread_runtime(2);
    for path in paths {
        for (managers, count) in [("one", 1), ("many", TASKS)] {
            let target = Target::start(path);
            let results = runtime.block_on(measure(&target.url, count, runs));
            print(&format!("fairness.{path}_{managers}"), &results);
        }
    }
}

/// The ratios of one run.
struct RunResult {
    p99_wait: f64,
    longest_wait: f64,
    p99_ahead: f64,
    total: f64,
}

async fn measure(url: &str, managers: usize, runs: usize) -> Vec<RunResult> {
    let managers = connect(url, managers).await;
    let mut round_trip = RoundTrip::connect(url).await;
    let mut results = Vec::with_capacity(runs);
    for _ in 0..runs {
        let sections = TASKS * ROUNDS;
        let started = Instant::now();
        for _ in 0..sections {
            tokio::time::sleep(SECTION).await;
        }
        let holds = started.elapsed();
        let round_trips = round_trip.measure(sections, SECTION).await;
        let base = holds + round_trips.iter().sum::<Duration>();
        let (waits, total) = contend(&managers).await;
        let (waits, ahead): (Vec<_>, Vec<_>) = waits.into_iter().unzip();
        let middle = percentile(&waits, 0.5);
        results.push(RunResult {
            p99_wait: ratio(percentile(&waits, 0.99), middle),
            longest_wait: ratio(percentile(&waits, 1.0), middle),
            p99_ahead: f64::from(percentile(&ahead, 0.99)),
            total: ratio(total, base),
        });
    }
    results
}

/// Runs all sections. Returns the waits, each with the number of sections that began during it, and the
/// time from the start to the end of the last section.
async fn contend(managers: &[LockManager]) -> (Vec<(Duration, u32)>, Duration) {
    let started = Instant::now();
    let begun = Arc::<AtomicU32>::default();
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let locks = managers[task % managers.len()].clone();
        let begun = Arc::clone(&begun);
        tasks.spawn(async move {
            let mut waits = Vec::with_capacity(ROUNDS);
            for _ in 0..ROUNDS {
                let before = begun.load(Ordering::Relaxed);
                let started = Instant::now();
                let guard = locks.lock(NAME).wait(WAIT).acquire().await;
                let guard = guard.expect("the wait is long");
                let ahead = begun.fetch_add(1, Ordering::Relaxed) - before;
                waits.push((started.elapsed(), ahead));
                tokio::time::sleep(SECTION).await;
                guard.release().await.expect("the lock was held");
            }
            waits
        });
    }
    let waits = tasks.join_all().await.concat();
    (waits, started.elapsed())
}

fn print(figure: &str, results: &[RunResult]) {
    let middle = |value: fn(&RunResult) -> f64| median(results.iter().map(value));
    let p99_wait = middle(|result| result.p99_wait);
    let longest_wait = middle(|result| result.longest_wait);
    let p99_ahead = middle(|result| result.p99_ahead);
    let total = middle(|result| result.total);
    report_at_most(&format!("{figure}_p99_wait"), p99_wait, "medians", 1.5);
    report(&format!("{figure}_longest_wait"), longest_wait, "medians");
    report(&format!("{figure}_p99_ahead"), p99_ahead, "sections");
    report_at_most(&format!("{figure}_total"), total, "x", 1.15);
}
