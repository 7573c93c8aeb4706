//! Measures what telemetry costs an uncontended pair of acquire and release:
//! `cargo bench -p benches --bench telemetry`
//!
//! - `idle`: a pair without a reader of events, divided by a pair without the checks for listeners. There is no
//!   build without these checks, so the bench measures them alone, and adds their share of the pair. They
//!   take a few nanoseconds, and the time of a pair varies by more than that.
//! - `idle_checks`: the checks of one pair, in nanoseconds.
//! - `prometheus`: a pair with a Prometheus recorder, divided by a pair without one.
//! - `observer`: a pair with an observer that counts events, divided by a pair without one.
//!
//! The feature `metrics` is on. The two sides of a ratio alternate in short blocks, as in `overhead`. Client
//! and server are pinned to one core.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use benches::figures::{median, micros, report, report_at_most};
use benches::is_short;
use benches::pairs;
use benches::pin::pin_to_one_core;
use lock_core::LockManager;
use lock_core::telemetry::{ACQUIRE_BUCKETS, HOLD_BUCKETS, LockEvent, idle_checks};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusRecorder};
use test_support::RedisServer;
use test_support::fixtures::current_thread_runtime;

const BLOCK: u32 = 100;
const ROUNDS: usize = 300;
const SHORT_ROUNDS: usize = 60;
const WARM_UP: usize = 20;
const KEY: &str = "bench";
/// The checks of so many pairs take some milliseconds.
const CHECKED_PAIRS: u32 = 200_000;
const CHECK_ROUNDS: usize = 15;

fn main() {
    pin_to_one_core();
    let server = RedisServer::start();
    current_thread_runtime().block_on(measure(&server));
}

fn recorder() -> PrometheusRecorder {
    let full = |name: &str| Matcher::Full(format!("distributed_lock.{name}.duration"));
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(full("acquire"), ACQUIRE_BUCKETS)
        .and_then(|builder| builder.set_buckets_for_metric(full("command"), ACQUIRE_BUCKETS))
        .and_then(|builder| builder.set_buckets_for_metric(full("hold"), HOLD_BUCKETS));
    builder.expect("there are buckets").build_recorder()
}

async fn measure(server: &RedisServer) {
    let locks = pairs::connect(server).await;
    let events = std::sync::Arc::new(AtomicU64::new(0));
    let counted = std::sync::Arc::clone(&events);
    let observed = LockManager::builder().observer(move |event: &LockEvent<'_>| {
        black_box(event);
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let observed = observed.connect(&server.url()).await.expect("it is up");
    let recorder = recorder();

    let mut prometheus = Vec::new();
    let mut with_observer = Vec::new();
    let mut idle = Vec::new();
    let rounds = if is_short() { SHORT_ROUNDS } else { ROUNDS };
    for round in 0..WARM_UP + rounds {
        let with_metrics = async || {
            // Of this thread, which does all the work of a pair.
            let _recorder = metrics::set_default_local_recorder(&recorder);
            block(&locks).await
        };
        // The order changes, so that no side profits from its place.
        let [alone, with_recorder, with_events] = if round % 2 == 0 {
            [
                block(&locks).await,
                with_metrics().await,
                block(&observed).await,
            ]
        } else {
            let with_events = block(&observed).await;
            let with_recorder = with_metrics().await;
            [block(&locks).await, with_recorder, with_events]
        };
        if round >= WARM_UP {
            idle.push(alone);
            prometheus.push(with_recorder / alone);
            with_observer.push(with_events / alone);
        }
    }
    assert!(
        events.load(Ordering::Relaxed) > 0,
        "the observer was called"
    );
    let pair = median(idle);
    let checks = median((0..CHECK_ROUNDS).map(|_| checks()));
    // In nanoseconds and microseconds.
    let share = checks / (pair * 1_000.0 - checks);
    report_at_most("telemetry.idle", 1.0 + share, "x", 1.02);
    report("telemetry.idle_checks", checks, "ns");
    report("telemetry.pair", pair, "us");
    report("telemetry.prometheus", median(prometheus), "x");
    report("telemetry.observer", median(with_observer), "x");
}

/// Returns the time of one pair in microseconds.
async fn block(locks: &LockManager) -> f64 {
    let started = Instant::now();
    for _ in 0..BLOCK {
        pairs::guard(locks, KEY, Duration::ZERO).await;
    }
    micros(started.elapsed() / BLOCK)
}

/// Returns the time of the checks of one pair in nanoseconds.
fn checks() -> f64 {
    let started = Instant::now();
    for _ in 0..CHECKED_PAIRS {
        assert!(!black_box(idle_checks()), "nobody listens");
    }
    micros(started.elapsed()) * 1_000.0 / f64::from(CHECKED_PAIRS)
}
