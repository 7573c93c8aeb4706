//! The lock-core side of a race with a client of another language; tests/interop/README.md has the
//! protocol. DIALECT sets the dialect. With SHARE=0 a native client hands the lock over to native
//! waiters only.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use interop::dialects::{REDISSON_FENCED, dialect, is_redisson};
use interop::wakes::WakeObserver;
use interop::worker::{self, WorkerConfig};
use lock_core::LockManager;
use lock_core::config::Handover;
use lock_core::dialect::Dialect;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let name = env("DIALECT");
    let dialect = dialect(&name);
    let handover = if dialect == Dialect::Native && env("SHARE") != "0" {
        Handover::YieldToOthers
    } else {
        Handover::Immediate
    };
    let builder = LockManager::builder()
        .dialect(dialect)
        // As fast as the other clients, which would get nearly all turns otherwise.
        .retry_interval(Duration::from_millis(20))
        .handover(handover);
    let ports = env("REDIS_PORT");
    let hosts: Vec<_> = ports
        .split(',')
        .map(|port| format!("127.0.0.1:{port}"))
        .collect();
    let url = match &hosts[..] {
        [one] => format!("redis://{one}"),
        all => format!("redis+quorum://{}", all.join(",")),
    };
    // The servers of a race have just started, and have forgotten nothing.
    let builder = builder.quarantine(Duration::ZERO);
    let wakes = is_redisson(&name).then(WakeObserver::default);
    let builder = match &wakes {
        Some(wakes) => builder.observer(wakes.clone()),
        None => builder,
    };
    // The key is given in full, so that other clients and this one use the same key.
    let locks = builder.prefix("").connect(&url).await;
    let place = WorkerConfig {
        key: env("LOCK_KEY"),
        ttl: Duration::from_millis(number("TTL_MS")),
        counter: PathBuf::from(env("COUNTER")),
        pause_ms: number("PAUSE_MS"),
        has_tokens: name == REDISSON_FENCED,
        wakes,
    };
    worker::work(&locks.expect("the server is running"), &place).await
}

fn number(name: &str) -> u64 {
    let parsed = env(name).parse();
    parsed.unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn env(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}
