//! The two commands that every lock needs: SET NX PX, and a script that compares and deletes.

use std::future::Future;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, IntoConnectionInfo, ProtocolVersion};
use uuid::Uuid;

use crate::{Arguments, Fault};

/// The lease of a raw pair, in milliseconds.
pub const TTL_OF_RAW: u32 = 30_000;

const COMPARE_AND_DELETE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                                  return redis.call('DEL', KEYS[1]) else return 0 end";

/// A connection that sends the raw pair.
pub trait RawPair: Send {
    /// Sends both commands, one after the other.
    fn pair(&mut self) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// Implements the raw pair for one version of the client.
macro_rules! raw {
    ($(#[$doc:meta])* $name:ident, $redis:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name<C> {
            connection: C,
            key: String,
            script: String,
        }

        impl<C: $redis::aio::ConnectionLike + Send> $name<C> {
            /// Loads the script.
            ///
            /// # Errors
            ///
            /// Fails if the connection fails.
            pub async fn new(mut connection: C, key: &str) -> Result<Self, Fault> {
                let mut load = $redis::cmd("SCRIPT");
                load.arg("LOAD").arg(COMPARE_AND_DELETE);
                let script = load.query_async(&mut connection).await?;
                let key = format!("{key}:raw");
                Ok(Self { connection, key, script })
            }
        }

        impl<C: $redis::aio::ConnectionLike + Send> RawPair for $name<C> {
            async fn pair(&mut self) -> Result<(), Fault> {
                let owner = Uuid::new_v4().to_string();
                let mut set = $redis::cmd("SET");
                set.arg(&self.key).arg(&owner).arg("NX").arg("PX").arg(TTL_OF_RAW);
                let is_set: bool = set.query_async(&mut self.connection).await?;
                let mut delete = $redis::cmd("EVALSHA");
                delete.arg(&self.script).arg(1).arg(&self.key).arg(&owner);
                let is_deleted: bool = delete.query_async(&mut self.connection).await?;
                if is_set && is_deleted {
                    Ok(())
                } else {
                    Err("the key of the raw pair was not free".into())
                }
            }
        }
    };
}

raw! {
    /// The raw pair with the client of all libraries but one.
    Raw, redis
}

raw! {
    /// The raw pair with the client of `redis-lock`.
    Raw027, redis_0_27
}

impl Raw<MultiplexedConnection> {
    /// Connects with the settings of this library's own connections.
    ///
    /// # Errors
    ///
    /// Fails if the URL is invalid or the connection fails.
    pub async fn like_lock_core(arguments: &Arguments) -> Result<Self, Fault> {
        let info = arguments.url.as_str().into_connection_info()?;
        let settings = info.redis_settings().clone();
        let info = info
            .set_redis_settings(settings.set_protocol(ProtocolVersion::RESP3))
            .set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let client = redis::Client::open(info)?;
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        Self::new(connection.await?, &arguments.key).await
    }
}
