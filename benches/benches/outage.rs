//! Measures what a manager costs while its server is down: `cargo bench -p benches --bench outage`
//!
//! Each figure is the processor time of the whole process during the outage, in percent of one core:
//!
//! - `waiting`: 10,000 callers repeatedly wait 5 s for a lock.
//! - `trying`: 10,000 callers repeatedly try once; each attempt fails after a second.
//! - `dropped`: 50,000 guards were dropped when the server died, and no caller is active.
//!
//! Each outage lasts 20 s. `LOCK_BENCH_OUTAGE` sets another number of seconds.

use std::time::{Duration, Instant};

use benches::process::{processor_time, resident_bytes};
use lock_core::{LockGuard, LockManager};
use test_support::RedisServer;
use tokio::task::JoinSet;

const CALLERS: usize = 10_000;
const DROPPED: usize = 50_000;
const TARGET: f64 = 5.0;
/// Longer than the bench, so that no lock expires.
const TTL: Duration = Duration::from_secs(3_600);

fn main() {
    let span = std::env::var("LOCK_BENCH_OUTAGE")
        .ok()
        .and_then(|seconds| seconds.parse().ok())
        .map_or(Duration::from_secs(20), Duration::from_secs);
    for (name, prepare) in [
        (
            "waiting",
            callers as fn(&tokio::runtime::Runtime, &LockManager, &RedisServer),
        ),
        ("trying", tries),
        ("dropped", dropped),
    ] {
        let server = RedisServer::start();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime starts");
        let locks = runtime.block_on(LockManager::connect(&server.url()));
        let locks = locks.expect("the server is up");
        prepare(&runtime, &locks, &server);
        // The beginning of the outage is not measured.
        std::thread::sleep(Duration::from_secs(2));
        let (started, before) = (Instant::now(), processor_time(std::process::id()));
        std::thread::sleep(span);
        let used = processor_time(std::process::id()).saturating_sub(before);
        let part = used.as_secs_f64() / started.elapsed().as_secs_f64() * 100.0;
        println!("outage.{name} {part:.2} % of a core (target <= {TARGET})");
        if name == "dropped" {
            let kib = resident_bytes(std::process::id()) / 1024;
            let kib = u32::try_from(kib).expect("the process has less than 4 TiB");
            println!("outage.memory {:.1} MiB resident", f64::from(kib) / 1024.0);
        }
        runtime.shutdown_background();
    }
}

fn callers(runtime: &tokio::runtime::Runtime, locks: &LockManager, server: &RedisServer) {
    server.kill9();
    for number in 0..CALLERS {
        let locks = locks.clone();
        runtime.spawn(async move {
            loop {
                let request = locks.lock(format!("job:{number}"));
                let _ = request.wait(Duration::from_secs(5)).acquire().await;
            }
        });
    }
}

fn tries(runtime: &tokio::runtime::Runtime, locks: &LockManager, server: &RedisServer) {
    server.kill9();
    for number in 0..CALLERS {
        let locks = locks.clone();
        runtime.spawn(async move {
            loop {
                let _ = locks.lock(format!("job:{number}")).try_acquire().await;
            }
        });
    }
}

fn dropped(runtime: &tokio::runtime::Runtime, locks: &LockManager, server: &RedisServer) {
    let guards = runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for task in 0..64 {
            let locks = locks.clone();
            tasks.spawn(async move {
                let mut guards: Vec<LockGuard> = Vec::new();
                for number in (task..DROPPED).step_by(64) {
                    let request = locks.lock(format!("job:{number}")).ttl(TTL);
                    guards.push(request.acquire().await.expect("the lock is free"));
                }
                guards
            });
        }
        let mut all = Vec::new();
        while let Some(guards) = tasks.join_next().await {
            all.extend(guards.expect("no task panics"));
        }
        all
    });
    server.kill9();
    drop(guards);
}
