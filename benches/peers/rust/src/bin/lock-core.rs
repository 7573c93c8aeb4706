//! This library, with an acquire that waits.

use std::process::ExitCode;

use lock_core::LockManager;
use peers::{About, Arguments, Fault, Library, Raw};
use redis::aio::MultiplexedConnection;

#[derive(Clone)]
struct LockCore {
    locks: LockManager,
    arguments: Arguments,
}

impl Library for LockCore {
    type Raw = Raw<MultiplexedConnection>;

    const ABOUT: About = About {
        name: "lock-core",
        kind: "fair lock",
        notes: "queue in the server, and a notification to the next waiter; renews",
    };

    async fn connect(arguments: &Arguments) -> Result<Self, Fault> {
        Ok(Self {
            locks: LockManager::connect(&arguments.url).await?,
            arguments: arguments.clone(),
        })
    }

    async fn raw(&self, arguments: &Arguments) -> Result<Self::Raw, Fault> {
        Raw::like_lock_core(arguments).await
    }

    async fn section<B>(&self, body: B) -> Result<B::Output, Fault>
    where
        B: Future + Send + 'static,
        B::Output: Send + 'static,
    {
        let request = self.locks.lock(self.arguments.key.as_str());
        let request = request.ttl(self.arguments.ttl).wait(self.arguments.wait);
        let guard = request.acquire().await?;
        let output = body.await;
        guard.release().await?;
        Ok(output)
    }
}

fn main() -> ExitCode {
    peers::main::<LockCore>()
}
