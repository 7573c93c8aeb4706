//! rslock with its default retry: three attempts, with random pauses up to 200 ms, again and again.

use std::process::ExitCode;
use std::time::Duration;

use peers::{About, Arguments, Fault, Library, Raw};
use redis::Client;
use redis::aio::MultiplexedConnection;
use rslock::LockManager;

#[derive(Clone)]
struct Rslock {
    locks: LockManager,
    client: Client,
    key: String,
    ttl: Duration,
    wait: Duration,
}

impl Library for Rslock {
    type Raw = Raw<MultiplexedConnection>;

    const ABOUT: About = About {
        name: "rslock",
        kind: "lock",
        notes: "polls after a random pause up to 200 ms; does not renew",
    };

    async fn connect(arguments: &Arguments) -> Result<Self, Fault> {
        let client = Client::open(arguments.url.as_str())?;
        Ok(Self {
            locks: LockManager::from_clients(vec![client.clone()]),
            client,
            key: arguments.key.clone(),
            ttl: arguments.ttl,
            wait: arguments.wait,
        })
    }

    async fn raw(&self, arguments: &Arguments) -> Result<Self::Raw, Fault> {
        // As the library connects.
        let connection = self.client.get_multiplexed_async_connection().await?;
        Raw::new(connection, &arguments.key).await
    }

    async fn section<B>(&self, body: B) -> Result<B::Output, Fault>
    where
        B: Future + Send + 'static,
        B::Output: Send + 'static,
    {
        // `acquire` has no limit of its own.
        let acquire = self.locks.acquire(self.key.as_str(), self.ttl);
        let guard = tokio::time::timeout(self.wait, acquire).await??;
        let output = body.await;
        guard.release().await;
        Ok(output)
    }
}

fn main() -> ExitCode {
    peers::main::<Rslock>()
}
