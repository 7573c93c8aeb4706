//! The lock-core agent of the experiments beside Redisson; tests/interop/README.md has the protocol.

use std::process::ExitCode;
use std::time::Duration;

use interop::dialects::dialect;
use interop::lock_agent::{self, AgentObserver};
use lock_core::LockManager;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> ExitCode {
    let observer = AgentObserver::default();
    let builder = LockManager::builder()
        .dialect(dialect(&env("SCHEME")))
        .client_name(env("CLIENT_NAME"))
        .default_ttl(millis(&env("TTL_MS")))
        .observer(observer.clone());
    let builder = match std::env::var("TIMEOUT_MS") {
        Ok(timeout) => builder.command_timeout(millis(&timeout)),
        Err(_) => builder,
    };
    let url = format!("redis://127.0.0.1:{}", env("REDIS_PORT"));
    let locks = builder.prefix("").connect(&url).await;
    lock_agent::run(locks.expect("the server is running"), observer).await
}

fn millis(text: &str) -> Duration {
    let millis = text.parse();
    Duration::from_millis(millis.unwrap_or_else(|e| panic!("`{text}`: {e}")))
}

fn env(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set"))
}
