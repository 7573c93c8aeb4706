//! Measures the cost of an uncontended lock: `cargo bench -p benches --bench overhead`
//!
//! - `pair_ratio`: one attempt and release through a guard, divided by the two commands that every lock
//!   needs: SET NX PX, and a script that compares and deletes. Both use the same kind of connection of
//!   the same client.
//! - `waiting_pair_ratio`: the same with an `acquire` that would wait. Its command carries the entry for
//!   the queue.
//! - `attribute_ratio`: an annotated function with an empty body, divided by acquire and release.
//! - `memory_pair`: one attempt and release through a guard, with locks in this process.
//! - `server_ratio`, `server_waiting_ratio`: the server's own time for a pair, from `INFO
//!   commandstats`, divided by its time for the raw pair. Fifty tasks send at the same time.
//!
//! The two sides of a ratio alternate in short blocks, so that other work on the machine affects both.
//! Client and server are pinned to one core: on two cores a round trip over loopback takes three times
//! as long, and hides the cost of the library.

use std::time::{Duration, Instant};

use benches::pairs::{self, WAIT};
use benches::raw::RawPair;
use benches::{is_short, median, pin_to_one_core, report, report_ratio, server_time};
use lock_core::LockManager;
use test_support::RedisServer;

/// Long enough for the clock and the caches, and shorter than changes of the machine's speed.
const BLOCK: u32 = 100;
/// With this many blocks the medians of two runs differ by about a percent.
const ROUNDS: usize = 300;
const SHORT_ROUNDS: usize = 60;
/// The first blocks fill caches and branch predictors.
const WARM_UP: usize = 20;

/// The best of many short blocks: each has a few milliseconds of the server's time, so that some are
/// not interrupted.
const SERVER_ROUNDS: usize = 40;
const SERVER_PAIRS: u32 = 1_000;

const KEY: &str = "bench";

fn main() {
    pin_to_one_core();
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime starts");
    runtime.block_on(measure(&server));
}

async fn measure(server: &RedisServer) {
    let rounds = if is_short() { SHORT_ROUNDS } else { ROUNDS };
    let mut raw = RawPair::connect(&server.url()).await;
    let locks = pairs::connect(server).await;

    let [mut pair, mut waiting_pair] = [Series::default(), Series::default()];
    for (wait, series) in [(Duration::ZERO, &mut pair), (WAIT, &mut waiting_pair)] {
        for round in 0..WARM_UP + rounds {
            let [raw_time, guard_time] = if round % 2 == 0 {
                let first = raw_block(&mut raw).await;
                [first, guard_block(&locks, wait).await]
            } else {
                let first = guard_block(&locks, wait).await;
                [raw_block(&mut raw).await, first]
            };
            series.add(round, raw_time, guard_time);
        }
    }
    let mut attribute = Series::default();
    for round in 0..WARM_UP + rounds {
        let [guard_time, attribute_time] = if round % 2 == 0 {
            let first = guard_block(&locks, WAIT).await;
            [first, attribute_block(&locks).await]
        } else {
            let first = attribute_block(&locks).await;
            [guard_block(&locks, WAIT).await, first]
        };
        attribute.add(round, guard_time, attribute_time);
    }

    report_ratio("overhead.pair_ratio", pair.ratio(), 1.15);
    report_ratio("overhead.waiting_pair_ratio", waiting_pair.ratio(), 1.15);
    report_ratio("overhead.attribute_ratio", attribute.ratio(), 1.05);
    report("overhead.raw_pair", pair.base(), "us");
    report("overhead.guard_pair", pair.compared(), "us");
    report("overhead.attribute_pair", attribute.compared(), "us");
    let mut memory_pair = Vec::new();
    for _ in 0..rounds {
        let time = guard_block(&LockManager::in_memory(), Duration::ZERO).await;
        memory_pair.push(micros(time));
    }
    report("overhead.memory_pair", median(memory_pair), "us");

    let times = server_time::measure(server, SERVER_ROUNDS, SERVER_PAIRS).await;
    report("overhead.server_raw_pair", times.raw, "us");
    report("overhead.server_pair", times.one_attempt, "us");
    report("overhead.server_waiting_pair", times.waiting, "us");
    let ratio = times.one_attempt / times.raw;
    report_ratio("overhead.server_ratio", ratio, 2.3);
    let ratio = times.waiting / times.raw;
    report_ratio("overhead.server_waiting_ratio", ratio, 2.3);
}

/// The times of adjacent blocks, in microseconds for one pair of commands.
#[derive(Default)]
struct Series(Vec<(f64, f64)>);

impl Series {
    fn add(&mut self, round: usize, base: Duration, compared: Duration) {
        if round >= WARM_UP {
            self.0.push((micros(base), micros(compared)));
        }
    }

    /// Returns the median of the ratios of adjacent blocks, which varies less than the ratio of the
    /// medians.
    fn ratio(&self) -> f64 {
        median(self.0.iter().map(|(base, compared)| compared / base))
    }

    fn base(&self) -> f64 {
        median(self.0.iter().map(|(base, _)| *base))
    }

    fn compared(&self) -> f64 {
        median(self.0.iter().map(|(_, compared)| *compared))
    }
}

fn micros(block: Duration) -> f64 {
    block.as_secs_f64() * 1e6 / f64::from(BLOCK)
}

async fn raw_block(raw: &mut RawPair) -> Duration {
    let started = Instant::now();
    for _ in 0..BLOCK {
        raw.run("lock:raw").await;
    }
    started.elapsed()
}

async fn guard_block(locks: &LockManager, wait: Duration) -> Duration {
    let started = Instant::now();
    for _ in 0..BLOCK {
        pairs::guard(locks, KEY, wait).await;
    }
    started.elapsed()
}

async fn attribute_block(locks: &LockManager) -> Duration {
    let started = Instant::now();
    for _ in 0..BLOCK {
        pairs::attribute(locks, KEY).await;
    }
    started.elapsed()
}
