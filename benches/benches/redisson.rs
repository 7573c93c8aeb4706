//! Measures locks of Redisson beside the raw commands: `cargo bench -p benches --bench redisson`
//!
//! - `pair_ratio`: one attempt and release through a guard, divided by two scripts that do no more than such a lock
//!   needs: the first writes the hash and its expiry, the second compares, deletes and publishes. Both use the same
//!   kind of connection of the same client.
//! - `fenced_pair_ratio`: the same with a counter of tokens on both sides.
//! - `waiting_pair_ratio`: the same as the first one with an `acquire` that would wait.
//! - `scripts_per_section`: the scripts that the server runs for a section, while nine tasks of three managers wait
//!   for one lock. Each message wakes a waiter of each manager, and one of them gets the lock.
//!
//! The two sides of a ratio alternate in short blocks, and client and server are pinned to one core, as in
//! `overhead`.

use std::time::Duration;

use benches::blocks::{alternate, block};
use benches::connection::{LoadedScript, open};
use benches::figures::{number, report, report_at_most};
use benches::is_short;
use benches::pairs::{self, WAIT};
use benches::pin::pin_to_one_core;
use benches::raw::TTL;
use benches::server_info::scripts;
use lock_core::LockManager;
use lock_core::dialect::{Dialect, RedissonLock};
use test_support::RedisServer;
use test_support::fixtures::current_thread_runtime;
use tokio::task::JoinSet;
use uuid::Uuid;

const PLAIN: Dialect = Dialect::Redisson {
    lock: RedissonLock::Plain,
};
const FENCED: Dialect = Dialect::Redisson {
    lock: RedissonLock::Fenced,
};

/// As in `overhead`.
const ROUNDS: usize = 300;
const SHORT_ROUNDS: usize = 60;
/// The sections of each task.
const SECTIONS: u32 = 100;
const MANAGERS: usize = 3;
const TASKS: u32 = 3;

const KEY: &str = "bench";

const LOCK: &str = "if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end \
                    if KEYS[2] then redis.call('INCR', KEYS[2]) end \
                    redis.call('HSET', KEYS[1], ARGV[1], 1) \
                    return redis.call('PEXPIRE', KEYS[1], ARGV[2])";
const UNLOCK: &str = "if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end \
                      redis.call('DEL', KEYS[1]) \
                      redis.call('PUBLISH', ARGV[2], '0') \
                      return 1";

fn main() {
    pin_to_one_core();
    let server = RedisServer::start();
    current_thread_runtime().block_on(measure(&server));
}

async fn measure(server: &RedisServer) {
    let rounds = if is_short() { SHORT_ROUNDS } else { ROUNDS };
    let mut raw = RawLock::connect(server).await;
    let plain = connect(server, PLAIN).await;
    let fenced = connect(server, FENCED).await;

    let mut raw_block = async || block(async || raw.run(&["raw"]).await).await;
    let once = async || guard_block(&plain, Duration::ZERO).await;
    let pair = alternate(rounds, &mut raw_block, once).await;
    let waiting = async || guard_block(&plain, WAIT).await;
    let waiting = alternate(rounds, &mut raw_block, waiting).await;
    let raw_block = async || block(async || raw.run(&["raw", "{raw}:token"]).await).await;
    let once = async || guard_block(&fenced, Duration::ZERO).await;
    let fenced = alternate(rounds, raw_block, once).await;
    report("redisson.pair_ratio", pair.ratio(), "x");
    report("redisson.waiting_pair_ratio", waiting.ratio(), "x");
    report("redisson.fenced_pair_ratio", fenced.ratio(), "x");
    report("redisson.raw_pair", pair.base(), "us");

    // A release, an acquire of each of the three managers for its message, and the first acquire of the next section.
    let used = contended(server).await;
    report_at_most("redisson.scripts_per_section", used, "scripts", 5.0);
}

async fn connect(server: &RedisServer, dialect: Dialect) -> LockManager {
    let builder = LockManager::builder().dialect(dialect);
    pairs::connect_to(builder, &server.url()).await
}

async fn guard_block(locks: &LockManager, wait: Duration) -> f64 {
    block(async || pairs::guard(locks, KEY, wait).await).await
}

/// Returns how many scripts the server runs for a section.
async fn contended(server: &RedisServer) -> f64 {
    let mut managers = Vec::new();
    for _ in 0..MANAGERS {
        managers.push(connect(server, PLAIN).await);
    }
    let before = scripts(server);
    let mut tasks = JoinSet::new();
    for locks in &managers {
        for _ in 0..TASKS {
            let locks = locks.clone();
            tasks.spawn(async move {
                for _ in 0..SECTIONS {
                    let request = locks.lock("contended").ttl(TTL);
                    let held = request.wait(Duration::from_secs(60)).acquire().await;
                    let held = held.expect("the others release");
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    held.release().await.expect("the lock was held");
                }
            });
        }
    }
    tasks.join_all().await;
    let used = (scripts(server) - before).calls;
    used / (number(MANAGERS as u64) * f64::from(TASKS * SECTIONS))
}

/// The two scripts that such a lock needs.
struct RawLock {
    lock: LoadedScript,
    unlock: LoadedScript,
}

impl RawLock {
    async fn connect(server: &RedisServer) -> Self {
        let connection = open(&server.url(), None).await;
        Self {
            lock: LoadedScript::load(&connection, LOCK).await,
            unlock: LoadedScript::load(&connection, UNLOCK).await,
        }
    }

    /// Acquires and releases a lock.
    async fn run(&mut self, keys: &[&str]) {
        let owner = format!("{}:1", Uuid::new_v4());
        let ttl = TTL.as_millis().to_string();
        let locked: bool = self.lock.call(keys, &[&owner, &ttl]).await;
        assert!(locked, "the lock is free");
        let channel = "redisson_lock__channel:{raw}".to_owned();
        let unlocked: bool = self.unlock.call(&keys[..1], &[&owner, &channel]).await;
        assert!(unlocked, "the lock was held");
    }
}
