//! The dialects of other libraries on a real server: what they write, what they respect, and what
//! happens when something breaks. That each keeps its part of the contracts of every backend is
//! shown in `conformance.rs`.

use std::time::Duration;

use lock_core::{Dialect, LockError, LockManager, ReleaseMethod};
use test_support::RedisServer;

mod deadlines;
mod dropped;
mod keys;
mod owners;
mod settings;
mod transactions;
mod trouble;

const NAME: &str = "job";
const KEY: &str = "lock:job";

/// A wait, or a bound, that says nothing about speed.
const SOON: Duration = Duration::from_secs(20);

/// What a busy machine may take for what is done at once.
const SLACK: Duration = Duration::from_millis(300);

const SET_NX_PX: Dialect = Dialect::SetNxPx {
    release: ReleaseMethod::Script,
};
const WATCH_MULTI: Dialect = Dialect::SetNxPx {
    release: ReleaseMethod::WatchMulti,
};

/// Those whose value is an owner.
const OWNERS: [Dialect; 4] = [
    Dialect::SetnxExpire,
    Dialect::LuaSetnxExpire,
    SET_NX_PX,
    WATCH_MULTI,
];

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

async fn connect(dialect: Dialect, url: &str) -> LockManager {
    let builder = LockManager::builder().label("rust").dialect(dialect);
    builder.connect(url).await.unwrap()
}

/// The value of the lock's key.
fn value(server: &RedisServer) -> String {
    server.cli(&["GET", KEY]).text().to_owned()
}

fn exists(server: &RedisServer) -> bool {
    server.cli(&["EXISTS", KEY]).integer() == 1
}

/// What somebody is told who tries.
async fn refusal(locks: &LockManager) -> LockError {
    locks.lock(NAME).acquire().await.unwrap_err()
}
