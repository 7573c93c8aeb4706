//! Measures what a fleet costs a Redis Cluster: `cargo bench -p benches --bench fleet`
//!
//! Each figure is named after the number of primaries and of managers. A manager stands for a process. Before the
//! measurement it has held a lock of each primary and waited for one, so that all of its connections are open.
//!
//! - `connections`: the connections of a manager to a primary.
//! - `commands`, `server`: the commands that clients send for a section, and the time of all primaries for them. The
//!   managers take turns, and each section has a key of its own.
//! - `used`, `idle`: how often a primary reads from clients in a second in which nobody locks, just after a section of
//!   each manager, and when the managers have been idle for long. The server reads a command alone, or a pipeline of
//!   commands.
//!
//! The short form has one size.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use benches::figures::{number, report, report_at_most};
use benches::is_short;
use benches::pairs;
use benches::server_info::{CommandStat, Traffic, scripts};
use lock_core::{LockError, LockManager};
use test_support::fixtures::multi_thread_runtime;
use test_support::{RedisCluster, RedisServer};
use tokio::task::JoinSet;

const PRIMARIES: [u16; 3] = [3, 6, 9];
const MANAGERS: [usize; 3] = [1, 20, 200];
/// Of the first runtime, and of the background worker.
const CONNECTIONS: f64 = 2.0;
/// More would make the connections of a small machine time out.
const STARTED_AT_ONCE: usize = 10;
/// Long enough for a subscription.
const WAIT: Duration = Duration::from_millis(500);
const SECTIONS: usize = 2_000;
/// A manager asks the primaries for their epochs while it is in use, which ends after ten seconds without a call.
const USED: Duration = Duration::from_secs(6);
const IDLE_AFTER: Duration = Duration::from_secs(6);
/// Several intervals of whatever a manager does without a call.
const IDLE: Duration = Duration::from_secs(9);

fn main() {
    let runtime = multi_thread_runtime(2);
    if is_short() {
        runtime.block_on(measure(3, &[20]));
        return;
    }
    for primaries in PRIMARIES {
        runtime.block_on(measure(primaries, &MANAGERS));
    }
}

async fn measure(primaries: u16, sizes: &[usize]) {
    let cluster = RedisCluster::start_primaries(primaries);
    let tags = tag_at_each_primary(&cluster);
    let mut managers = Vec::new();
    for &size in sizes {
        while managers.len() < size {
            let started = managers.len();
            let next = started..size.min(started + STARTED_AT_ONCE);
            managers.extend(start(&cluster, &tags, next).await);
        }
        let figure = |name| format!("fleet.{primaries}_primaries_{size}_managers_{name}");
        let (nodes, fleet) = (f64::from(primaries), number(size as u64));
        let connections = sum(&cluster, connections) / nodes / fleet;
        report_at_most(
            &figure("connections"),
            connections,
            "connections",
            CONNECTIONS,
        );

        let before = all_scripts(&cluster);
        for number in 0..SECTIONS {
            let locks = &managers[number % size];
            pairs::guard(locks, &format!("section:{number}"), pairs::WAIT).await;
        }
        let cost = all_scripts(&cluster) - before;
        let sections = number(SECTIONS as u64);
        report(&figure("commands"), cost.calls / sections, "commands");
        report(&figure("server"), cost.micros / sections, "us");

        for (number, locks) in managers.iter().enumerate() {
            pairs::guard(locks, &format!("used:{number}"), pairs::WAIT).await;
        }
        report(&figure("used"), reads(&cluster, USED).await, "reads/s");
        tokio::time::sleep(IDLE_AFTER).await;
        report(&figure("idle"), reads(&cluster, IDLE).await, "reads/s");
    }
    for locks in managers {
        while locks.shutdown().await.is_err() {}
    }
}

fn sum(cluster: &RedisCluster, of_node: impl Fn(&RedisServer) -> f64) -> f64 {
    cluster.nodes().iter().map(of_node).sum()
}

fn all_scripts(cluster: &RedisCluster) -> CommandStat {
    cluster.nodes().iter().map(scripts).sum()
}

/// Returns how often a primary reads from clients in a second.
async fn reads(cluster: &RedisCluster, span: Duration) -> f64 {
    let reads = |node: &RedisServer| Traffic::read(node).reads;
    let before = sum(cluster, reads);
    tokio::time::sleep(span).await;
    let nodes = number(cluster.nodes().len() as u64);
    // The end of the first INFO's connection and the second INFO are reads, too.
    ((sum(cluster, reads) - before) / nodes - 2.0) / span.as_secs_f64()
}

/// Counts the connections of the managers at a primary.
fn connections(node: &RedisServer) -> f64 {
    let list = node.cli(&["CLIENT", "LIST"]);
    let of_managers = list.text().lines().filter(|it| it.contains(" name=lock:"));
    number(of_managers.count() as u64)
}

/// Returns a hash tag of each primary.
fn tag_at_each_primary(cluster: &RedisCluster) -> Vec<String> {
    let mut tags = BTreeMap::new();
    for tag in 0.. {
        let tag = format!("{{{tag}}}");
        tags.entry(cluster.owner_of(&tag).port()).or_insert(tag);
        if tags.len() == cluster.nodes().len() {
            break;
        }
    }
    tags.into_values().collect()
}

/// Connects managers with these numbers, and makes them open all of their connections.
async fn start(cluster: &RedisCluster, tags: &[String], numbers: Range<usize>) -> Vec<LockManager> {
    let mut starting = JoinSet::new();
    for number in numbers {
        let url = cluster.url();
        let names: Vec<_> = tags.iter().map(|tag| format!("{tag}{number}")).collect();
        starting.spawn(async move {
            let locks = pairs::connect_to(LockManager::builder(), &url).await;
            let mut waiting = JoinSet::new();
            for name in names {
                let locks = locks.clone();
                waiting.spawn(async move { hold_and_wait(&locks, &name).await });
            }
            waiting.join_all().await;
            locks
        });
    }
    starting.join_all().await
}

/// Waits for a lock that the same manager holds.
async fn hold_and_wait(locks: &LockManager, name: &str) {
    let held = locks.lock(name).acquire().await.expect("it is free");
    let waited = locks.lock(name).wait(WAIT).acquire().await;
    assert!(
        matches!(waited, Err(LockError::Timeout { .. })),
        "{waited:?}"
    );
    held.release().await.expect("the lock was held");
}
