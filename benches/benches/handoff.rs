//! Measures how fast a lock goes to the next waiter: `cargo bench -p benches --bench handoff`
//!
//! A handover takes from the call of the release until the next holder runs. It is measured in round
//! trips: divided by a PING over a connection with the same settings, paced like the handovers,
//! within the same run. A release needs half a round trip to the server, and the notification
//! another half to the next holder. Each figure is for a number of waiters: 1, 10, 100 and 1,000.
//!
//! - `proxy`: through a proxy that adds 1 ms to the round trip, so that the network counts and not
//!   the scheduler of this machine. `loopback` is without the proxy, and has no target: it shows what
//!   the client and the server add.
//! - `one`: all waiters share a manager. `many`: each waiter has its own manager, and so its own
//!   connections and its own background thread.
//! - `p50`: the median handover of a block divided by the median PING before it, and the median of
//!   all blocks. `p99`: of all handovers, divided by the median PING.
//! - `commands`: the scripts that clients sent for each section, from `INFO commandstats`.
//! - `p50_to_raw`: as `p50`, divided by a handover without the library: a script that writes the key
//!   and publishes, and a subscriber on a thread of its own.
//! - `ping_p99`, `raw_p99`: as `p99`, of the PINGs and of the handovers without the library. They
//!   show what the machine alone adds.
//!
//! The sections are shorter than a third of the handover lease, so they need no renewal.
//! `LOCK_BENCH_HANDOFF` sets another number of blocks.

use std::sync::Arc;
use std::time::Duration;

use benches::contention::{Block, Turns, connect, take_turns};
use benches::figures::{micros, percentile, ratio, report_relative, report_target};
use benches::{median, report};
use test_support::{Proxy, RedisServer};

const WAITERS: [usize; 4] = [1, 10, 100, 1_000];
/// More managers need more threads and file descriptors than a machine may allow.
const MOST_MANAGERS: usize = 100;
const SECTION: Duration = Duration::from_millis(2);
/// The handovers of a block take some hundred milliseconds, shorter than changes of the speed of
/// the machine.
const BLOCK: usize = 20;
const BLOCKS: usize = 10;
const ADDED: Duration = Duration::from_millis(1);

fn main() {
    let blocks = std::env::var("LOCK_BENCH_HANDOFF")
        .ok()
        .and_then(|blocks| blocks.parse().ok())
        .unwrap_or(BLOCKS);
    for path in ["proxy", "loopback"] {
        for managers in ["one", "many"] {
            for waiters in WAITERS {
                if managers == "one" || waiters <= MOST_MANAGERS {
                    measure(path, managers, waiters, blocks);
                }
            }
        }
    }
}

fn measure(path: &str, managers: &str, waiters: usize, blocks: usize) {
    let server = Arc::new(RedisServer::start());
    let proxy = Proxy::in_front_of(&server);
    proxy.delay_round_trip(ADDED);
    let url = if path == "proxy" {
        proxy.url()
    } else {
        server.url()
    };
    let count = if managers == "one" { 1 } else { waiters + 1 };
    let turns = Turns {
        waiters,
        section: SECTION,
        blocks,
        block: BLOCK,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime starts");
    let measured = runtime.block_on(async {
        let managers = connect(&url, count).await;
        take_turns(&server, &url, &managers, turns).await
    });
    runtime.shutdown_background();
    let figure = format!("handoff.{path}_{managers}_{waiters}");
    print(&figure, path == "proxy", &measured);
}

fn print(figure: &str, has_target: bool, blocks: &[Block]) {
    let relative = |base: fn(&Block) -> &Vec<Duration>| {
        let of_block = blocks
            .iter()
            .map(|block| ratio(middle(&block.handovers), middle(base(block))));
        median(of_block)
    };
    let all = |values: fn(&Block) -> &Vec<Duration>| -> Vec<Duration> {
        blocks.iter().flat_map(values).copied().collect()
    };
    let handovers = all(|block| &block.handovers);
    let ping = middle(&all(|block| &block.round_trips));
    let p99 = |times: &[Duration]| ratio(percentile(times, 0.99), ping);
    let calls: u32 = blocks.iter().map(|block| block.cost.calls).sum();
    let sections = u32::try_from(handovers.len()).expect("a bench has few sections");
    let commands = f64::from(calls) / f64::from(sections);
    let p50 = relative(|block| &block.round_trips);
    if has_target {
        report_target(&format!("{figure}.p50"), p50, "round trips", 1.2);
        let p99 = p99(&handovers);
        report_target(&format!("{figure}.p99"), p99, "round trips", 3.0);
    } else {
        report_relative(&format!("{figure}.p50"), p50, "round trips");
        report_relative(&format!("{figure}.p99"), p99(&handovers), "round trips");
    }
    report_target(&format!("{figure}.commands"), commands, "commands", 2.1);
    let raw = relative(|block| &block.raw_handovers);
    report_relative(&format!("{figure}.p50_to_raw"), raw, "x");
    let [ping_p99, raw_p99] = [
        p99(&all(|block| &block.round_trips)),
        p99(&all(|block| &block.raw_handovers)),
    ];
    report_relative(&format!("{figure}.ping_p99"), ping_p99, "round trips");
    report_relative(&format!("{figure}.raw_p99"), raw_p99, "round trips");
    report(&format!("{figure}.ping"), micros(ping), "us");
}

fn middle(values: &[Duration]) -> Duration {
    percentile(values, 0.5)
}
