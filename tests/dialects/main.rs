//! The dialects of other libraries on a real server: what they write, which foreign locks they
//! respect, and how they handle faults. The target `conformance` tests that each dialect fulfils
//! the contract of every store.

use lock_core::dialect::Dialect;
use lock_core::{LockError, LockManager};
use test_support::RedisServer;
use test_support::fixtures::{KEY, NAME};
use tests::{SET_NX_PX, SET_NX_PX_AUTO, WATCH_MULTI, one_attempt};

mod by_server;
mod deadlines;
mod dropped;
mod keys;
mod migration;
mod owners;
mod plain_scripts;
mod redisson;
mod redisson_waits;
mod refused_commands;
mod settings;
mod transactions;
mod trouble;

/// The dialects whose value is an owner.
const OWNERS: [Dialect; 5] = [
    Dialect::SetnxExpire,
    Dialect::LuaSetnxExpire,
    SET_NX_PX,
    WATCH_MULTI,
    SET_NX_PX_AUTO,
];

async fn connect_in(dialect: Dialect, url: &str) -> LockManager {
    let builder = one_attempt(LockManager::builder());
    let builder = builder.label("rust").dialect(dialect);
    builder.connect(url).await.unwrap()
}

/// Returns the value of the lock's key.
fn value(server: &RedisServer) -> String {
    server.cli(&["GET", KEY]).text().to_owned()
}

/// Returns the error of one attempt.
async fn refusal(locks: &LockManager) -> LockError {
    locks.lock(NAME).acquire().await.unwrap_err()
}
