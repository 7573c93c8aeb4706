//! redis-lock: `MultiResourceLock` with one resource, and its default interval of 1 s between attempts.

use std::process::ExitCode;

use peers::{About, Arguments, Fault, Library, Raw027};
use redis_0_27::Client;
use redis_0_27::aio::MultiplexedConnection;
use redis_lock::{DEFAULT_SLEEP, MultiResourceLock};

#[derive(Clone)]
struct RedisLockMulti {
    client: Client,
    arguments: Arguments,
}

impl Library for RedisLockMulti {
    type Raw = Raw027<MultiplexedConnection>;

    const ABOUT: About = About {
        name: "redis-lock",
        kind: "MultiResourceLock",
        // Its function `acquire_lock` passes the milliseconds of the lease as `EX`.
        notes: "polls every second; connects for each command; does not renew; a lease lasts a thousand \
                times as long as the caller says",
    };

    async fn connect(arguments: &Arguments) -> Result<Self, Fault> {
        let client = Client::open(arguments.url.as_str())?;
        let setup = redis_lock::setup(&client).await;
        // Its error cannot be sent to another thread.
        setup.map_err(|fault| fault.to_string())?;
        Ok(Self {
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
        let mut lock = MultiResourceLock::new(self.client.clone())?;
        let (ttl, wait) = (self.arguments.ttl, self.arguments.wait);
        let key = [self.arguments.key.clone()];
        let acquired = lock.acquire(&key, ttl, wait, DEFAULT_SLEEP).await?;
        let id = acquired.ok_or_else(|| format!("the lock was not free within {wait:?}"))?;
        let output = body.await;
        lock.release(&id).await?;
        Ok(output)
    }
}

fn main() -> ExitCode {
    peers::main::<RedisLockMulti>()
}
