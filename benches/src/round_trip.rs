//! The round trip that a measurement is compared with.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind};
use tokio::sync::Notify;

/// A connection that measures round trips with PING.
#[derive(Clone)]
pub struct RoundTrip(MultiplexedConnection);

impl RoundTrip {
    /// Connects with the settings of the library's own connections.
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply.
    pub async fn connect(url: &str) -> Self {
        Self(open(url, None).await)
    }

    /// Measures this many round trips, each after a pause of `pace`. A command after a pause takes
    /// longer than the next one of a busy client, because threads and cores have to wake up.
    ///
    /// # Panics
    ///
    /// Panics if the server does not reply.
    pub async fn measure(&mut self, count: usize, pace: Duration) -> Vec<Duration> {
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            tokio::time::sleep(pace).await;
            let started = Instant::now();
            let pong: String = redis::cmd("PING")
                .query_async(&mut self.0)
                .await
                .expect("the server replies");
            times.push(started.elapsed());
            assert_eq!(pong, "PONG");
        }
        times
    }
}

/// Opens a connection with the settings of the library's own connections. Each message to its
/// subscriptions wakes a waiter of `messages`.
pub(crate) async fn open(url: &str, messages: Option<Arc<Notify>>) -> MultiplexedConnection {
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
