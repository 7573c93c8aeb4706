//! Measures what a manager costs while its server is down: `cargo bench -p benches --bench outage`
//!
//! Each figure is the processor time of the whole process during the outage, in percent of one core:
//!
//! - `waiting`: 10,000 callers repeatedly wait 5 s for a lock.
//! - `trying`: 10,000 callers repeatedly try once; each attempt fails after a second.
//! - `dropped`: 50,000 guards were dropped when the server died, and no caller is active.
//!
//! Each outage lasts 20 s. The short form has a tenth of the callers and guards, and 2 s.

use std::time::{Duration, Instant};

use benches::figures::{number, percent, report, report_at_most};
use benches::process::{own_processor_time, resident_bytes};
use benches::{held, is_short};
use lock_core::LockManager;
use test_support::RedisServer;
use test_support::fixtures::multi_thread_runtime;
use tokio::runtime::Runtime;

const CALLERS: u32 = 10_000;
const DROPPED: u32 = 50_000;
const SPAN: Duration = Duration::from_secs(20);
const SHORT_SPAN: Duration = Duration::from_secs(2);
const TARGET: f64 = 5.0;
/// Longer than the bench, so that no lock expires.
const TTL: Duration = Duration::from_secs(3_600);

/// What a manager has to do while the server is down.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Waiting,
    Trying,
    Dropped,
}

fn main() {
    let (span, part) = if is_short() {
        (SHORT_SPAN, 10)
    } else {
        (SPAN, 1)
    };
    for (name, work) in [
        ("waiting", Work::Waiting),
        ("trying", Work::Trying),
        ("dropped", Work::Dropped),
    ] {
        let server = RedisServer::start();
        let runtime = multi_thread_runtime(2);
        let locks = runtime.block_on(LockManager::connect(&server.url()));
        let locks = locks.expect("the server is up");
        match work {
            Work::Waiting => call(&runtime, &locks, &server, CALLERS / part, WAIT),
            Work::Trying => call(&runtime, &locks, &server, CALLERS / part, Duration::ZERO),
            Work::Dropped => drop_guards(&runtime, &locks, &server, DROPPED / part),
        }
        // The beginning of the outage is not measured.
        std::thread::sleep(Duration::from_secs(2));
        let (started, before) = (Instant::now(), own_processor_time());
        std::thread::sleep(span);
        let used = own_processor_time().saturating_sub(before);
        let used = percent(used, started.elapsed());
        report_at_most(&format!("outage.{name}"), used, "% of a core", TARGET);
        if work == Work::Dropped {
            let mebibytes = number(resident_bytes(std::process::id())) / f64::from(1 << 20);
            report("outage.memory", mebibytes, "MiB resident");
        }
        runtime.shutdown_background();
    }
}

/// The time for which a caller waits for a lock.
const WAIT: Duration = Duration::from_secs(5);

fn call(
    runtime: &Runtime,
    locks: &LockManager,
    server: &RedisServer,
    callers: u32,
    wait: Duration,
) {
    server.kill9();
    for number in 0..callers {
        let locks = locks.clone();
        runtime.spawn(async move {
            loop {
                let request = locks.lock(held::name(number)).wait(wait);
                let _error = request.acquire().await;
            }
        });
    }
}

fn drop_guards(runtime: &Runtime, locks: &LockManager, server: &RedisServer, count: u32) {
    let mut guards = Vec::new();
    runtime.block_on(held::acquire_all(locks, 0..count, TTL, &mut guards));
    server.kill9();
    drop(guards);
}
