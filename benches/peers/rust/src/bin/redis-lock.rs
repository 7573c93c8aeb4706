//! redis-lock: `lock_across` on one server, with its default interval of 100 ms between attempts.

use std::process::ExitCode;
use std::sync::Arc;

use peers::{About, Arguments, Fault, Library, Raw027};
use redis_0_27::Client;
use redis_0_27::aio::MultiplexedConnection;
use redis_lock::{LockAcrossOptions, lock_across};
use tokio::sync::Mutex;

#[derive(Clone)]
struct RedisLock {
    // As its documentation shows: the tasks share one connection, in a mutex.
    connections: Arc<[Arc<Mutex<MultiplexedConnection>>]>,
    client: Client,
    arguments: Arguments,
}

impl Library for RedisLock {
    type Raw = Raw027<MultiplexedConnection>;

    const ABOUT: About = About {
        name: "redis-lock",
        kind: "lock_across",
        notes: "polls every 100 ms; does not renew",
    };

    async fn connect(arguments: &Arguments) -> Result<Self, Fault> {
        let client = Client::open(arguments.url.as_str())?;
        let connection = client.get_multiplexed_async_connection().await?;
        Ok(Self {
            connections: Arc::new([Arc::new(Mutex::new(connection))]),
            client,
            arguments: arguments.clone(),
        })
    }

    async fn raw(&self, arguments: &Arguments) -> Result<Self::Raw, Fault> {
        let connection = self.client.get_multiplexed_async_connection().await?;
        Raw027::new(connection, &arguments.key).await
    }

    async fn section<B>(&self, body: B) -> Result<B::Output, Fault>
    where
        B: Future + Send + 'static,
        B::Output: Send + 'static,
    {
        let options = LockAcrossOptions {
            ttl: self.arguments.ttl,
            duration: self.arguments.wait,
            ..LockAcrossOptions::default()
        };
        let key = self.arguments.key.as_str();
        let section = lock_across(&self.connections, key, body, options);
        // Its error of a panic cannot be sent to another thread.
        section.await.map_err(|fault| fault.to_string().into())
    }
}

fn main() -> ExitCode {
    peers::main::<RedisLock>()
}
