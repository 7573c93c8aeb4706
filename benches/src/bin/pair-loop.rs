//! Runs one kind of pair in a loop, for a profiler:
//! `cargo run --release -p benches --bin pair-loop -- guard 700`
//!
//! The kinds are `raw`, `guard` (one attempt), `waiting` and `attribute`. The number is how many blocks of
//! a hundred pairs run, with client and server on one core. Prints the median and the best time of a pair.

use std::time::{Duration, Instant};

use benches::figures::median;
use benches::pairs::{self, WAIT};
use benches::pin::pin_to_one_core;
use benches::raw::RawPair;
use test_support::RedisServer;

const BLOCK: u32 = 100;
const KEY: &str = "pair-loop";

fn main() {
    let mut args = std::env::args().skip(1);
    let kind = args.next().unwrap_or_else(|| "guard".into());
    let blocks = args.next().map_or(Ok(700), |text| text.parse());
    let Ok(blocks @ 1..) = blocks else {
        eprintln!("the second argument is the number of blocks, at least 1");
        std::process::exit(2);
    };
    pin_to_one_core();
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime starts");
    runtime.block_on(run(&kind, blocks, &server));
}

async fn run(kind: &str, blocks: usize, server: &RedisServer) {
    let mut raw = RawPair::connect(&server.url()).await;
    let locks = pairs::connect(server).await;
    let mut times = Vec::with_capacity(blocks);
    for _ in 0..blocks {
        let started = Instant::now();
        for _ in 0..BLOCK {
            match kind {
                "raw" => raw.run(KEY).await,
                "guard" => pairs::guard(&locks, KEY, Duration::ZERO).await,
                "waiting" => pairs::guard(&locks, KEY, WAIT).await,
                "attribute" => pairs::attribute(&locks, KEY).await,
                _ => {
                    eprintln!("unknown kind `{kind}`: use raw, guard, waiting or attribute");
                    std::process::exit(2);
                }
            }
        }
        times.push(started.elapsed().as_secs_f64() * 1e6 / f64::from(BLOCK));
    }
    let best = times.iter().copied().fold(f64::MAX, f64::min);
    println!("{kind}: median {:.1} us, best {best:.1} us", median(times));
}
