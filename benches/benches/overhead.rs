//! Measures the cost of an uncontended lock: `cargo bench -p benches --bench overhead`
//!
//! - `pair_ratio`: one attempt and release through a guard, divided by the two commands that every lock
//!   needs: SET NX PX, and a script that compares and deletes. Both use the same kind of connection of
//!   the same client.
//! - `waiting_pair_ratio`: the same with an `acquire` that would wait. Its command carries the entry for
//!   the queue.
//! - `shared_pair_ratio`: as `pair_ratio`, in a runtime that uses the background worker's connection, because another one
//!   came first.
//! - `attribute_ratio`: an annotated function with an empty body, divided by acquire and release.
//! - `read_pair_ratio`: one attempt and release of a read lock, divided by those of an exclusive lock.
//! - `memory_pair`: one attempt and release through a guard, with locks in this process.
//! - `server_ratio`, `server_waiting_ratio`: the server's own time for a pair, from `INFO
//!   commandstats`, divided by its time for the raw pair. Fifty tasks send at the same time.
//! - `server_empty`, `server_bound`: the server's time for a pair of scripts with the keys and arguments
//!   of one attempt. The first pair calls nothing. The second pair makes only the calls that the protocol
//!   needs, so it is the bound. `server_to_bound` is the library's time divided by it.
//!
//! The two sides of a ratio alternate in short blocks, so that other work on the machine affects both.
//! Client and server are pinned to one core: on two cores a round trip over loopback takes three times
//! as long, and hides the cost of the library.

use std::time::Duration;

use benches::blocks::{alternate, block};
use benches::figures::{median, report, report_at_most};
use benches::pairs::{self, WAIT};
use benches::pin::pin_to_one_core;
use benches::raw::RawPair;
use benches::{is_short, server_time};
use lock_core::{Kind, LockManager};
use test_support::RedisServer;
use test_support::fixtures::current_thread_runtime;

/// With this many blocks the medians of two runs differ by about a percent.
const ROUNDS: usize = 300;
const SHORT_ROUNDS: usize = 60;

/// The best of many short blocks: each has a few milliseconds of the server's time, so that some are
/// not interrupted.
const SERVER_ROUNDS: usize = 40;
const SHORT_SERVER_ROUNDS: usize = 20;
const SERVER_PAIRS: u32 = 1_000;

const KEY: &str = "bench";

fn main() {
    pin_to_one_core();
    let server = RedisServer::start();
    // It has the manager's first connection, and does nothing else.
    let first = current_thread_runtime();
    let shared = first.block_on(pairs::connect(&server));
    current_thread_runtime().block_on(measure(&server, &shared));
}

async fn measure(server: &RedisServer, shared: &LockManager) {
    let rounds = if is_short() { SHORT_ROUNDS } else { ROUNDS };
    let mut raw = RawPair::connect(&server.url()).await;
    let locks = pairs::connect(server).await;

    let mut raw_block = async || block(async || raw.run("lock:raw").await).await;
    let once = async || guard_block(&locks, Duration::ZERO).await;
    let waiting = async || guard_block(&locks, WAIT).await;
    let attribute = async || block(async || pairs::attribute(&locks, KEY).await).await;
    let pair = alternate(rounds, &mut raw_block, once).await;
    let once_shared = async || guard_block(shared, Duration::ZERO).await;
    let shared_pair = alternate(rounds, &mut raw_block, once_shared).await;
    let waiting_pair = alternate(rounds, &mut raw_block, waiting).await;
    let attribute = alternate(rounds, waiting, attribute).await;
    let read = async || {
        block(async || pairs::section(&locks, KEY, Kind::Read, Duration::ZERO).await).await
    };
    let read_pair = alternate(rounds, once, read).await;
    let mut memory_pair = Vec::new();
    for _ in 0..rounds {
        memory_pair.push(guard_block(&LockManager::in_memory(), Duration::ZERO).await);
    }

    for (figure, ratio, target) in [
        ("pair_ratio", pair.ratio(), 1.15),
        ("waiting_pair_ratio", waiting_pair.ratio(), 1.15),
        ("attribute_ratio", attribute.ratio(), 1.05),
        ("read_pair_ratio", read_pair.ratio(), 1.3),
    ] {
        report_at_most(&format!("overhead.{figure}"), ratio, "x", target);
    }
    report("overhead.shared_pair_ratio", shared_pair.ratio(), "x");
    report("overhead.raw_pair", pair.base(), "us");
    report("overhead.guard_pair", pair.compared(), "us");
    report("overhead.attribute_pair", attribute.compared(), "us");
    report("overhead.memory_pair", median(memory_pair), "us");

    let server_rounds = if is_short() {
        SHORT_SERVER_ROUNDS
    } else {
        SERVER_ROUNDS
    };
    let times = server_time::measure(server, server_rounds, SERVER_PAIRS).await;
    for (figure, time) in [
        ("raw_pair", times.raw),
        ("empty", times.empty),
        ("bound", times.bound),
        ("pair", times.one_attempt),
        ("waiting_pair", times.waiting),
    ] {
        report(&format!("overhead.server_{figure}"), time, "us");
    }
    for (figure, time) in [
        ("ratio", times.one_attempt),
        ("waiting_ratio", times.waiting),
    ] {
        let figure = format!("overhead.server_{figure}");
        report_at_most(&figure, time / times.raw, "x", 2.3);
    }
    let to_bound = times.one_attempt / times.bound;
    report("overhead.server_to_bound", to_bound, "x");
}

async fn guard_block(locks: &LockManager, wait: Duration) -> f64 {
    block(async || pairs::guard(locks, KEY, wait).await).await
}
