//! Measures the cost of an uncontended lock: `cargo bench -p benches --bench overhead`
//!
//! - `pair_ratio`: one attempt and release through a guard, divided by the two commands that every lock
//!   needs: SET NX PX, and a script that compares and deletes. Both use the same kind of connection of
//!   the same client.
//! - `waiting_pair_ratio`: the same with an `acquire` that would wait. Its command carries the entry for
//!   the queue.
//! - `attribute_ratio`: an annotated function with an empty body, divided by acquire and release.
//!
//! The two sides of a ratio alternate in short blocks, so that other work on the machine affects both.
//! Client and server are pinned to one core: on two cores a round trip over loopback takes three times
//! as long, and hides the cost of the library.

use std::hint::black_box;
use std::time::{Duration, Instant};

use benches::{median, pin_to_one_core, report, report_ratio};
use lock_core::{LockError, LockManager, distributed_lock};
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, IntoConnectionInfo, ProtocolVersion};
use test_support::RedisServer;
use uuid::Uuid;

/// Long enough for the clock and the caches, and shorter than changes of the machine's speed.
const BLOCK: u32 = 100;
/// With this many blocks the medians of two runs differ by about a percent.
const ROUNDS: usize = 300;
/// The first blocks fill caches and branch predictors.
const WARM_UP: usize = 20;

const KEY: &str = "bench";
const TTL: Duration = Duration::from_secs(30);
/// The default of a manager.
const WAIT: Duration = Duration::from_secs(5);

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
    let mut raw = Raw::connect(&server.url()).await;
    let locks = LockManager::connect(&server.url())
        .await
        .expect("the server is up");

    let [mut pair, mut waiting_pair] = [Series::default(), Series::default()];
    for (wait, series) in [(Duration::ZERO, &mut pair), (WAIT, &mut waiting_pair)] {
        for round in 0..WARM_UP + ROUNDS {
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
    for round in 0..WARM_UP + ROUNDS {
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
}

/// The times of adjacent blocks, in microseconds for one pair of commands.
#[derive(Default)]
struct Series(Vec<(f64, f64)>);

impl Series {
    fn add(&mut self, round: usize, base: Duration, compared: Duration) {
        if round >= WARM_UP {
            let micros = |block: Duration| block.as_secs_f64() * 1e6 / f64::from(BLOCK);
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

/// The two commands without the library.
struct Raw {
    connection: MultiplexedConnection,
    release_hash: String,
}

impl Raw {
    /// Connects with the settings of the library's own connections.
    async fn connect(url: &str) -> Self {
        let info = url.into_connection_info().expect("the server has a URL");
        let settings = info.redis_settings().clone();
        let info = info
            .set_redis_settings(settings.set_protocol(ProtocolVersion::RESP3))
            .set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let mut connection = redis::Client::open(info)
            .expect("the URL is valid")
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .expect("the server is up");
        let script = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                      return redis.call('DEL', KEYS[1]) else return 0 end";
        let release_hash = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(script)
            .query_async(&mut connection)
            .await
            .expect("the script compiles");
        Self {
            connection,
            release_hash,
        }
    }

    async fn pair(&mut self) {
        let owner = Uuid::new_v4().to_string();
        let set: bool = redis::cmd("SET")
            .arg("lock:raw")
            .arg(&owner)
            .arg("NX")
            .arg("PX")
            .arg(TTL.as_millis())
            .query_async(&mut self.connection)
            .await
            .expect("the server replies");
        assert!(set, "the lock is free");
        let deleted: bool = redis::cmd("EVALSHA")
            .arg(&self.release_hash)
            .arg(1)
            .arg("lock:raw")
            .arg(&owner)
            .query_async(&mut self.connection)
            .await
            .expect("the server replies");
        assert!(deleted, "the lock was held");
    }
}

async fn raw_block(raw: &mut Raw) -> Duration {
    let started = Instant::now();
    for _ in 0..BLOCK {
        raw.pair().await;
    }
    started.elapsed()
}

async fn guard_block(locks: &LockManager, wait: Duration) -> Duration {
    let started = Instant::now();
    for _ in 0..BLOCK {
        let request = locks.lock(black_box(KEY)).ttl(TTL).wait(wait);
        let guard = request.acquire().await.expect("the lock is free");
        guard.release().await.expect("the lock was held");
    }
    started.elapsed()
}

#[distributed_lock(name = "{key}", ttl = "30s", manager = locks)]
async fn annotated(locks: &LockManager, key: &str) -> Result<(), LockError> {
    Ok(())
}

async fn attribute_block(locks: &LockManager) -> Duration {
    let started = Instant::now();
    for _ in 0..BLOCK {
        let done = annotated(locks, black_box(KEY)).await;
        done.expect("the lock is free");
    }
    started.elapsed()
}
