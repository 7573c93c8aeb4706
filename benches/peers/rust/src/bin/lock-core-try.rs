//! This library, with one attempt that does not wait. Runs only `pair`.

use std::process::ExitCode;

use lock_core::LockManager;
use peers::{About, Arguments, Fault, Library, Raw};
use redis::aio::MultiplexedConnection;

#[derive(Clone)]
struct LockCoreTry {
    locks: LockManager,
    arguments: Arguments,
}

impl Library for LockCoreTry {
    type Raw = Raw<MultiplexedConnection>;

    const ABOUT: About = About {
        name: "lock-core",
        kind: "one attempt",
        notes: "`try_acquire`; the other rows need an acquire that waits",
    };

    const ONLY: Option<&'static str> = Some("pair");

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
        let guard = request.ttl(self.arguments.ttl).try_acquire().await?;
        let guard = guard.ok_or("another holder has the lock")?;
        let output = body.await;
        guard.release().await?;
        Ok(output)
    }
}

fn main() -> ExitCode {
    peers::main::<LockCoreTry>()
}
