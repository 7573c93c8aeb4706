//! Connections without the library, with the settings of the library's own.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, FromRedisValue, IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind,
    ToRedisArgs,
};
use tokio::sync::Notify;

/// Opens a connection. Each message to its subscriptions wakes a waiter of `messages`.
///
/// # Panics
///
/// Panics if the server does not reply.
pub async fn open(url: &str, messages: Option<Arc<Notify>>) -> MultiplexedConnection {
    let info = url.into_connection_info().expect("the server has a URL");
    let settings = info.redis_settings().clone();
    let info = info
        .set_redis_settings(settings.set_protocol(ProtocolVersion::RESP3))
        .set_tcp_settings(TcpSettings::default().set_nodelay(true));
    let mut config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None);
    if let Some(messages) = messages {
        config = config.set_push_sender(move |message: PushInfo| {
            if message.kind == PushKind::Message {
                messages.notify_one();
            }
            Ok::<(), std::convert::Infallible>(())
        });
    }
    redis::Client::open(info)
        .expect("the URL is valid")
        .get_multiplexed_async_connection_with_config(&config)
        .await
        .expect("the server is up")
}

/// A script that a server has loaded. Clones share the connection.
#[derive(Clone)]
pub struct LoadedScript {
    connection: MultiplexedConnection,
    hash: Arc<str>,
}

impl LoadedScript {
    /// Loads a script.
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply, or if the script does not compile.
    pub async fn load(connection: &MultiplexedConnection, text: &str) -> Self {
        let mut connection = connection.clone();
        let hash: String = redis::cmd("SCRIPT")
            .arg("LOAD")
            .arg(text)
            .query_async(&mut connection)
            .await
            .expect("the script compiles");
        Self {
            connection,
            hash: hash.into(),
        }
    }

    /// Calls the script by its hash.
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply, or replies with an error.
    pub async fn call<T: FromRedisValue>(
        &mut self,
        keys: &[&str],
        arguments: impl ToRedisArgs,
    ) -> T {
        redis::cmd("EVALSHA")
            .arg(&*self.hash)
            .arg(keys.len())
            .arg(keys)
            .arg(arguments)
            .query_async(&mut self.connection)
            .await
            .expect("the server replies")
    }
}
