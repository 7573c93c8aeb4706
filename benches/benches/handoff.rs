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
//! The short form has the path `loopback` only, with up to 100 waiters.

use std::time::Duration;

use benches::contention::{Block, PATHS, Target, Turns, connect, take_turns};
use benches::figures::{median, micros, number, percentile, ratio, report, report_at_most};
use benches::is_short;
use test_support::fixtures::multi_thread_runtime;

const WAITERS: [usize; 4] = [1, 10, 100, 1_000];
/// More managers need more threads and file descriptors than a machine may allow.
const MOST_MANAGERS: usize = 100;
const SHORT_WAITERS: [usize; 2] = [10, 100];
const SECTION: Duration = Duration::from_millis(2);
/// The handovers of a block take some hundred milliseconds, shorter than changes of the speed of
/// the machine.
const BLOCK: usize = 20;
const BLOCKS: usize = 10;
const SHORT_BLOCKS: usize = 3;

fn main() {
    let (paths, all_waiters, blocks) = if is_short() {
        (&PATHS[..1], &SHORT_WAITERS[..], SHORT_BLOCKS)
    } else {
        (&PATHS[..], &WAITERS[..], BLOCKS)
    };
    for path in paths {
        for managers in ["one", "many"] {
            for &waiters in all_waiters {
                if managers == "one" || waiters <= MOST_MANAGERS {
                    measure(path, managers, waiters, blocks);
                }
            }
        }
    }
}

fn measure(path: &str, managers: &str, waiters: usize, blocks: usize) {
    let target = Target::start(path);
    let count = if managers == "one" { 1 } else { waiters + 1 };
    let turns = Turns {
        waiters,
        section: SECTION,
        blocks,
        block: BLOCK,
    };
    let runtime = multi_thread_runtime(2);
    let measured = runtime.block_on(async {
        let managers = connect(&target.url, count).await;
        take_turns(&target, &managers, turns).await
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
    let calls: f64 = blocks.iter().map(|block| block.cost.calls).sum();
    let commands = calls / number(handovers.len() as u64);
    let p50 = relative(|block| &block.round_trips);
    if has_target {
        report_at_most(&format!("{figure}_p50"), p50, "round trips", 1.2);
        let p99 = p99(&handovers);
        report_at_most(&format!("{figure}_p99"), p99, "round trips", 3.0);
    } else {
        report(&format!("{figure}_p50"), p50, "round trips");
        report(&format!("{figure}_p99"), p99(&handovers), "round trips");
    }
    report_at_most(&format!("{figure}_commands"), commands, "commands", 2.1);
    let raw = relative(|block| &block.raw_handovers);
    report(&format!("{figure}_p50_to_raw"), raw, "x");
    let [ping_p99, raw_p99] = [
        p99(&all(|block| &block.round_trips)),
        p99(&all(|block| &block.raw_handovers)),
    ];
    report(&format!("{figure}_ping_p99"), ping_p99, "round trips");
    report(&format!("{figure}_raw_p99"), raw_p99, "round trips");
    report(&format!("{figure}_ping"), micros(ping), "us");
}

fn middle(values: &[Duration]) -> Duration {
    percentile(values, 0.5)
}
