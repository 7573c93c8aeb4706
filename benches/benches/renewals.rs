//! Measures the renewals of many held locks of one manager:
//! `cargo bench -p benches --bench renewals`
//!
//! For 10,000 and for 100,000 locks with a ttl of 30 s, which are renewed every 10 s:
//!
//! - `N_client`, `N_server`: the processor times of this process and of the server, in percent of one
//!   core, during two renewals of each lock.
//! - `N_commands`: the commands that the server gets in a second.
//! - `N_each`: the renewals of one lock in one interval: 1 when the library sends none twice.
//! - `N_lateness`: how late the latest renewal was confirmed, in milliseconds after it was due. It
//!   includes the round trip. It is read from [`remaining`](lock_core::LockGuard::remaining) of some
//!   hundred guards every 10 ms, so it may be 10 ms too low.
//!
//! `raw_server` is the server's processor time for the same number of plain PEXPIRE commands of other
//! keys, in pipelines of 128.
//!
//! The locks are acquired as fast as possible, so they are renewed in bursts. That is the worst case.
//! The short form has 1,000 locks with a ttl of 6 s.

use std::time::{Duration, Instant};

use benches::figures::{percent, report, report_at_most};
use benches::process::{Processors, processor_time_of};
use benches::server_info::scripts;
use benches::{held, is_short, pairs};
use lock_core::LockGuard;
use test_support::RedisServer;
use test_support::fixtures::multi_thread_runtime;
use tokio::runtime::Runtime;

/// The share of the ttl after which a lock is renewed by default.
const INTERVALS_OF_A_TTL: u32 = 3;
const SAMPLES: usize = 256;
const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);
/// The background worker's own.
const BATCH: u32 = 128;

struct Plan {
    locks: u32,
    ttl: Duration,
    intervals: u32,
    target: Option<f64>,
}

fn main() {
    let plan = |locks, ttl, intervals, target| Plan {
        locks,
        ttl: Duration::from_secs(ttl),
        intervals,
        target,
    };
    let plans = if is_short() {
        vec![plan(1_000, 6, 2, None)]
    } else {
        vec![plan(10_000, 30, 2, Some(5.0)), plan(100_000, 30, 2, None)]
    };
    for plan in plans {
        let server = RedisServer::start();
        let runtime = multi_thread_runtime(1);
        measure(&plan, &runtime, &server);
        // The guards were not released.
        server.kill9();
        runtime.shutdown_background();
    }
}

fn measure(plan: &Plan, runtime: &Runtime, server: &RedisServer) {
    let interval = plan.ttl / INTERVALS_OF_A_TTL;
    let mut guards = Vec::new();
    let started = Instant::now();
    let locks = runtime.block_on(async {
        let locks = pairs::connect(server).await;
        held::acquire_all(&locks, 0..plan.locks, plan.ttl, &mut guards).await;
        locks
    });
    let acquired_in = started.elapsed();
    assert!(
        acquired_in < interval,
        "the locks were acquired in {acquired_in:?}: the first are renewed already"
    );
    // Between two bursts, so that the measurement contains whole bursts.
    let margin = interval.saturating_sub(acquired_in) / 2;
    std::thread::sleep(margin);

    let before = scripts(server);
    let processors = Processors::start(server.pid());
    let least = least_remaining(&guards, interval * plan.intervals);
    let usage = processors.stop();
    let renewals = (scripts(server) - before).calls;
    let lost = locks.stats().lost;
    assert_eq!(lost, 0, "locks were lost");

    let figure = |name| format!("renewals.{}_{name}", plan.locks);
    let client = usage.client_percent();
    match plan.target {
        Some(target) => {
            report_at_most(&figure("client"), client, "% of a core", target);
        }
        None => report(&figure("client"), client, "% of a core"),
    }
    report(&figure("server"), usage.server_percent(), "% of a core");
    let seconds = usage.elapsed.as_secs_f64();
    report(&figure("commands"), renewals / seconds, "commands/s");
    let of_all = f64::from(plan.locks) * f64::from(plan.intervals);
    report(&figure("each"), renewals / of_all, "renewals");
    // A renewal that is confirmed when it is due leaves this much at least.
    let margin = plan.ttl / 100 + Duration::from_millis(2);
    let on_time = plan.ttl.saturating_sub(margin + interval);
    let lateness = on_time.saturating_sub(least).as_secs_f64() * 1e3;
    report(&figure("lateness"), lateness, "ms");

    let raw = raw_server_time(server, plan.locks) * plan.intervals;
    let raw = percent(raw, usage.elapsed);
    report(&figure("raw_server"), raw, "% of a core");
    // Their release would take as long as everything before.
    std::mem::forget(guards);
}

/// Returns the smallest time for which a lock was still held.
fn least_remaining(guards: &[LockGuard], span: Duration) -> Duration {
    let started = Instant::now();
    let step = guards.len().div_ceil(SAMPLES);
    let mut least = Duration::MAX;
    while started.elapsed() < span {
        for guard in guards.iter().step_by(step) {
            least = least.min(guard.remaining());
        }
        std::thread::sleep(SAMPLE_INTERVAL);
    }
    least
}

/// Returns the server's processor time for one PEXPIRE of each of `keys` keys.
fn raw_server_time(server: &RedisServer, keys: u32) -> Duration {
    let mut connection = server.connect().expect("the server is up");
    let ttl = "3600000";
    let mut pipelined = |command: &dyn Fn(u32) -> Vec<String>| {
        for first in (0..keys).step_by(BATCH as usize) {
            let batch = first..keys.min(first + BATCH);
            for key in batch.clone() {
                connection.send(&command(key)).expect("the server is up");
            }
            for _ in batch {
                let reply = connection.receive().expect("the server replies");
                assert!(reply.error().is_none(), "{reply:?}");
            }
        }
    };
    let text = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
    pipelined(&|key| text(&["SET", &format!("raw:{key}"), "x", "PX", ttl]));
    let before = processor_time_of(server.pid());
    pipelined(&|key| text(&["PEXPIRE", &format!("raw:{key}"), ttl]));
    processor_time_of(server.pid()).saturating_sub(before)
}
