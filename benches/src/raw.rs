//! The two commands that every lock needs, without the library: the control of the measurements.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use uuid::Uuid;

use crate::connection::{LoadedScript, open};

/// The ttl of all locks of which a bench measures a pair of acquire and release.
pub const TTL: Duration = Duration::from_secs(30);

/// Deletes a key of this owner.
const RELEASE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                       return redis.call('DEL', KEYS[1]) else return 0 end";

/// Sends SET NX PX, and then a script that compares and deletes. Clones share the connection.
#[derive(Clone)]
pub struct RawPair {
    connection: MultiplexedConnection,
    release: LoadedScript,
}

impl RawPair {
    /// Connects with the settings of the library's own connections, and loads the script.
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply.
    pub async fn connect(url: &str) -> Self {
        let connection = open(url, None).await;
        let release = LoadedScript::load(&connection, RELEASE).await;
        Self {
            connection,
            release,
        }
    }

    /// Sets and deletes a key.
    ///
    /// # Panics
    ///
    /// Panics if the key is not free, or if the server does not reply.
    pub async fn run(&mut self, key: &str) {
        let owner = self.set(key).await;
        self.delete(key, &owner).await;
    }

    /// Sets a key, and returns its owner.
    ///
    /// # Panics
    ///
    /// Panics if the key is not free, or if the server does not reply.
    pub async fn set(&mut self, key: &str) -> String {
        let owner = Uuid::new_v4().to_string();
        let set: bool = redis::cmd("SET")
            .arg(key)
            .arg(&owner)
            .arg("NX")
            .arg("PX")
            .arg(TTL.as_millis())
            .query_async(&mut self.connection)
            .await
            .expect("the server replies");
        assert!(set, "the lock is free");
        owner
    }

    /// Deletes a key of this owner.
    ///
    /// # Panics
    ///
    /// Panics if the key has another owner, or if the server does not reply.
    pub async fn delete(&mut self, key: &str, owner: &str) {
        let deleted: bool = self.release.call(&[key], owner).await;
        assert!(deleted, "the lock was held");
    }
}
