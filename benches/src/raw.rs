//! The two commands that every lock needs, without the library: the control of the measurements.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, IntoConnectionInfo, ProtocolVersion};
use uuid::Uuid;

/// The ttl of all locks of which a bench measures a pair of acquire and release.
pub const TTL: Duration = Duration::from_secs(30);

/// Sends SET NX PX, and then a script that compares and deletes. Clones share the connection.
#[derive(Clone)]
pub struct RawPair {
    connection: MultiplexedConnection,
    release_hash: String,
}

impl RawPair {
    /// Connects with the settings of the library's own connections, and loads the script.
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply.
    pub async fn connect(url: &str) -> Self {
        let info = url.into_connection_info().expect("the server has a URL");
        let settings = info.redis_settings().clone();
        let info = info
            .set_redis_settings(settings.set_protocol(ProtocolVersion::RESP3))
            .set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let mut connection = redis::Client::open(info)
            .expect("the URL is valid")
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .expect("the server is up");
        let script = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                      return redis.call('DEL', KEYS[1]) else return 0 end";
        let release_hash = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(script)
            .query_async(&mut connection)
            .await
            .expect("the script compiles");
        Self {
            connection,
            release_hash,
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
        let deleted: bool = redis::cmd("EVALSHA")
            .arg(&self.release_hash)
            .arg(1)
            .arg(key)
            .arg(owner)
            .query_async(&mut self.connection)
            .await
            .expect("the server replies");
        assert!(deleted, "the lock was held");
    }
}
