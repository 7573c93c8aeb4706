//! Measures readers, permits and sets beside exclusive locks: `cargo bench -p benches --bench kinds`
//!
//! The times are the server's own, from `INFO commandstats`.
//!
//! - `exclusive_pair`, `read_pair`, `permit_pair`: one attempt and release. Fifty tasks send at the same time.
//! - `read_to_exclusive`, `permit_to_exclusive`: these times divided by that of the exclusive lock.
//! - `readers_N`: the release of a writer that lets N waiting readers in.
//! - `set_N`, `set_N_commands`: a set of N free names is acquired and released; its time and its commands.
//!
//! The short form has fewer rounds.

use std::time::Duration;

use benches::figures::{median, report, report_at_most};
use benches::server_info::{CommandStat, scripts};
use benches::{is_short, pairs, server_time};
use lock_core::{Kind, LockManager};
use test_support::RedisServer;
use test_support::fixtures::current_thread_runtime;
use tokio::task::JoinSet;

const PERMITS: Kind = Kind::Permits { of: 4, weight: 1 };
const NAME: &str = "kinds";
const QUEUE: &str = "{lock:kinds}:q";
/// Longer than the bench.
const LONG: Duration = Duration::from_secs(60);

fn main() {
    let server = RedisServer::start();
    current_thread_runtime().block_on(measure(&server));
}

async fn measure(server: &RedisServer) {
    let rounds = if is_short() { 5 } else { 31 };
    let kinds = [Kind::Exclusive, Kind::Read, PERMITS];
    let times = server_time::of_kinds(server, &kinds, rounds, 2_000).await;
    let [exclusive, read, permit] = times[..] else {
        unreachable!("one time for each kind");
    };
    report("kinds.exclusive_pair", exclusive, "us");
    report("kinds.read_pair", read, "us");
    report("kinds.permit_pair", permit, "us");
    report("kinds.read_to_exclusive", read / exclusive, "x");
    report("kinds.permit_to_exclusive", permit / exclusive, "x");

    let locks = pairs::connect(server).await;
    for readers in [10, 100] {
        let mut times = Vec::new();
        for _ in 0..rounds {
            times.push(handover_to_readers(server, &locks, readers).await);
        }
        let figure = format!("kinds.readers_{readers}");
        // A call lets in a hundred at most, and the server serves no other client meanwhile.
        report_at_most(&figure, median(times) / 1_000.0, "ms", 2.0);
    }
    for names in [2, 3, 8, 16] {
        let (mut times, mut commands) = (Vec::new(), Vec::new());
        for _ in 0..20 * rounds {
            let used = set(server, &locks, names).await;
            times.push(used.micros);
            commands.push(used.calls);
        }
        report(&format!("kinds.set_{names}"), median(times), "us");
        let figure = format!("kinds.set_{names}_commands");
        report_at_most(&figure, median(commands), "commands", 2.0);
    }
}

/// Returns the server's time for the release of a writer, in microseconds. This many readers wait for it.
async fn handover_to_readers(server: &RedisServer, locks: &LockManager, readers: u32) -> f64 {
    let writer = locks.lock(NAME).write().acquire().await;
    let writer = writer.expect("the lock is free");
    let mut waiting = JoinSet::new();
    for _ in 0..readers {
        let request = locks.lock(NAME).read().wait(LONG);
        waiting.spawn(async move { request.acquire().await.expect("the writer releases") });
    }
    while server.cli(&["ZCARD", QUEUE]).integer() < i64::from(readers) {
        tokio::task::yield_now().await;
    }
    let before = scripts(server);
    writer.release().await.expect("the lock was held");
    let used = scripts(server) - before;
    // No reader has released yet: this task did not wait since the reply.
    assert!((used.calls - 1.0).abs() < 0.5, "{} calls", used.calls);
    for reader in waiting.join_all().await {
        reader.release().await.expect("the lock was held");
    }
    used.micros
}

/// Returns what the server did to acquire and release a set of free names.
async fn set(server: &RedisServer, locks: &LockManager, names: u64) -> CommandStat {
    let names = (0..names).map(|name| format!("set:{name}"));
    let before = scripts(server);
    let set = locks.lock_all(names).wait(LONG).acquire().await;
    let set = set.expect("the locks are free");
    set.release().await.expect("the locks were held");
    scripts(server) - before
}
