//! distkit with its default interval of 50 ms between attempts.

use std::process::ExitCode;
use std::sync::Arc;

use distkit::DistkitRedisKey;
use distkit::lock::{LockGuardState, LockOptions, Mutex};
use peers::{About, Arguments, Fault, Library, Raw};
use redis::aio::ConnectionManager;

struct Distkit {
    mutex: Arc<Mutex>,
    connection: ConnectionManager,
    arguments: Arguments,
}

/// A `Mutex` has one owner id, so that each task has its own. All share one connection.
impl Clone for Distkit {
    fn clone(&self) -> Self {
        Self::new(self.connection.clone(), &self.arguments)
    }
}

impl Distkit {
    fn new(connection: ConnectionManager, arguments: &Arguments) -> Self {
        // Its keys have no colons.
        let key = DistkitRedisKey::sanitize_or_panic(arguments.key.clone());
        let options = LockOptions::builder(key, connection.clone());
        let options = options.ttl(arguments.ttl).max_wait(arguments.wait).build();
        Self {
            mutex: Mutex::new(options),
            connection,
            arguments: arguments.clone(),
        }
    }
}

impl Library for Distkit {
    type Raw = Raw<ConnectionManager>;

    const ABOUT: About = About {
        name: "distkit",
        kind: "mutex",
        notes: "polls every 50 ms; renews",
    };

    async fn connect(arguments: &Arguments) -> Result<Self, Fault> {
        let client = redis::Client::open(arguments.url.as_str())?;
        let connection = client.get_connection_manager().await?;
        Ok(Self::new(connection, arguments))
    }

    async fn raw(&self, arguments: &Arguments) -> Result<Self::Raw, Fault> {
        Raw::new(self.connection.clone(), &arguments.key).await
    }

    async fn section<B>(&self, body: B) -> Result<B::Output, Fault>
    where
        B: Future + Send + 'static,
        B::Output: Send + 'static,
    {
        let guard = self.mutex.lock().await?;
        let output = body.await;
        match guard.release().await? {
            LockGuardState::Released => Ok(output),
            state => Err(format!("the lock is {state:?} after its release").into()),
        }
    }
}

fn main() -> ExitCode {
    peers::main::<Distkit>()
}
