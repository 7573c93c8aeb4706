//! Counts what the client allocates for an uncontended lock:
//! `cargo bench -p benches --bench allocations`
//!
//! Each figure is the number of allocations, or of their bytes, for one pair of acquire and release:
//!
//! - `raw_pair`: SET NX PX, and a script that compares and deletes, without the library.
//! - `guard_pair`: one attempt and release through a guard.
//! - `waiting_pair`: the same with an `acquire` that would wait.
//! - `attribute_pair`: an annotated function with an empty body. It waits by default.
//! - `memory_pair`: one attempt and release through a guard, with locks in this process.
//!
//! This is not a part of the bench `overhead`, because the counting costs time.

use std::time::Duration;

use benches::allocations::{Allocations, Counting};
use benches::figures::report;
use benches::is_short;
use benches::pairs::{self, WAIT};
use benches::raw::RawPair;
use lock_core::LockManager;
use test_support::RedisServer;
use test_support::fixtures::current_thread_runtime;

#[global_allocator]
static ALLOCATOR: Counting = Counting::system();

const KEY: &str = "bench";
/// Lets buffers grow to their size.
const WARM_UP: u32 = 200;
const PAIRS: u32 = 2_000;
const SHORT_PAIRS: u32 = 1_000;

fn main() {
    let server = RedisServer::start();
    current_thread_runtime().block_on(measure(&server));
}

async fn measure(server: &RedisServer) {
    let mut raw = RawPair::connect(&server.url()).await;
    let locks = pairs::connect(server).await;
    let in_memory = LockManager::in_memory();

    let cost = count(async || raw.run("lock:raw").await).await;
    print("raw_pair", cost);
    let cost = count(async || pairs::guard(&locks, KEY, Duration::ZERO).await).await;
    print("guard_pair", cost);
    let cost = count(async || pairs::guard(&locks, KEY, WAIT).await).await;
    print("waiting_pair", cost);
    let cost = count(async || pairs::attribute(&locks, KEY).await).await;
    print("attribute_pair", cost);
    let cost = count(async || pairs::guard(&in_memory, KEY, Duration::ZERO).await).await;
    print("memory_pair", cost);
}

async fn count(mut pair: impl AsyncFnMut()) -> Allocations {
    for _ in 0..WARM_UP {
        pair().await;
    }
    let before = Allocations::read(&ALLOCATOR);
    let pairs = if is_short() { SHORT_PAIRS } else { PAIRS };
    for _ in 0..pairs {
        pair().await;
    }
    Allocations::read(&ALLOCATOR).per(before, pairs)
}

fn print(pair: &str, cost: Allocations) {
    report(&format!("allocations.{pair}"), cost.count, "allocations");
    report(&format!("allocations.{pair}_bytes"), cost.bytes, "bytes");
}
