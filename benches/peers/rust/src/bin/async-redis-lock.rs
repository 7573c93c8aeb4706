//! async-redis-lock with its default interval of 100 ms between attempts.

use std::process::ExitCode;
use std::time::Duration;

use async_redis_lock::{Locker, Options};
use peers::{About, Arguments, Fault, Library, Raw};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};

#[derive(Clone)]
struct AsyncRedisLock {
    locker: Locker,
    options: Options,
    key: String,
}

impl Library for AsyncRedisLock {
    type Raw = Raw<ConnectionManager>;

    const ABOUT: About = About {
        name: "async-redis-lock",
        kind: "lock",
        notes: "polls every 100 ms; renews",
    };

    async fn connect(arguments: &Arguments) -> Result<Self, Fault> {
        let options = Options::new().ttl(arguments.ttl);
        Ok(Self {
            locker: Locker::from_redis_url(&arguments.url).await?,
            // Its documentation recommends to renew after a third of the ttl.
            options: options
                .timeout(Some(arguments.wait))
                .extend(arguments.ttl / 3),
            key: arguments.key.clone(),
        })
    }

    async fn raw(&self, arguments: &Arguments) -> Result<Self::Raw, Fault> {
        // As the library connects.
        let config = ConnectionManagerConfig::default().set_max_delay(Duration::from_secs(2));
        let client = redis::Client::open(arguments.url.as_str())?;
        let connection = ConnectionManager::new_with_config(client, config).await?;
        Raw::new(connection, &arguments.key).await
    }

    async fn section<B>(&self, body: B) -> Result<B::Output, Fault>
    where
        B: Future + Send + 'static,
        B::Output: Send + 'static,
    {
        let acquire = self
            .locker
            .acquire_with_options(&self.options, self.key.as_str());
        let lock = acquire.await?;
        let output = body.await;
        lock.release().await?;
        Ok(output)
    }
}

fn main() -> ExitCode {
    peers::main::<AsyncRedisLock>()
}
