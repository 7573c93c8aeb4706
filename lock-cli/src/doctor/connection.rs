//! The connection of `doctor`.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ErrorKind, FromRedisValue,
    IntoConnectionInfo, Pipeline, ProtocolVersion, PushInfo, PushKind, RedisError, Value,
};
use tokio::sync::mpsc;

use super::info::Info;
use super::{Check, server};
use crate::args::GlobalArgs;
use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;

/// How many pings are measured.
const PINGS: u32 = 20;

/// A connection to the server.
pub(super) struct Server {
    connection: MultiplexedConnection,
    info: ConnectionInfo,
    address: String,
    timeout: Duration,
    messages: mpsc::UnboundedReceiver<PushInfo>,
}

impl Server {
    /// Connects. The failure has the text that all other commands have.
    pub(super) async fn connect(url: &str, global: &GlobalArgs) -> Result<Self, Failure> {
        if let Some(advice) = other_url(url) {
            return Err(Failure::new(
                Exit::Config,
                "invalid-url",
                format!("doctor checks one server without TLS: {advice}"),
            ));
        }
        match Self::dial(url, global).await {
            Ok(server) => Ok(server),
            Err(error) => match connect::to(url, global, None).await {
                Err(failure) => Err(failure),
                Ok(_) => Err(Failure::internal("cannot connect", &error)),
            },
        }
    }

    async fn dial(url: &str, global: &GlobalArgs) -> Result<Self, RedisError> {
        let info = url.into_connection_info()?;
        let settings = info.redis_settings().clone();
        let info = info.set_redis_settings(settings.set_protocol(ProtocolVersion::RESP3));
        let address = info.addr().to_string();
        let client = Client::open(info.clone())?;
        let (sender, messages) = mpsc::unbounded_channel();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(global.timeout))
            .set_response_timeout(Some(global.timeout))
            .set_push_sender(sender);
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        let connection = connecting.await?;
        Ok(Self {
            connection,
            info,
            address,
            timeout: global.timeout,
            messages,
        })
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Returns the name of the user.
    pub(super) fn user(&self) -> &str {
        user(&self.info)
    }

    pub(super) async fn call<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<T, RedisError> {
        command.query_async(&mut self.connection).await
    }

    pub(super) async fn pipeline<T: FromRedisValue>(
        &mut self,
        pipeline: &Pipeline,
    ) -> Result<T, RedisError> {
        pipeline.query_async(&mut self.connection).await
    }

    /// Measures round trips.
    pub(super) async fn reachable(&mut self) -> Result<Check, Failure> {
        let mut times = Vec::new();
        for _ in 0..PINGS {
            let sent = Instant::now();
            // A user without +ping gets an error, which takes as long.
            match self.call::<Value>(&redis::cmd("PING")).await {
                Err(error) if error.is_io_error() || error.is_timeout() => {
                    let text = format!("lost the connection to {} ({error})", self.address);
                    return Err(Failure::new(Exit::Unavailable, "unreachable", text));
                }
                _ => times.push(sent.elapsed()),
            }
        }
        Ok(server::reachable(times, &self.address))
    }

    pub(super) async fn info(&mut self) -> Result<Info, RedisError> {
        let text: String = self.call(&redis::cmd("INFO")).await?;
        Ok(Info::parse(&text))
    }

    /// Reads the fields that HELLO has too. Every user may run it.
    pub(super) async fn greeting(&mut self) -> Info {
        let reply = self.call(&redis::cmd("HELLO")).await;
        reply.map_or_else(|_| Info::default(), Info::of_greeting)
    }

    /// Returns the first word of ROLE, if the user may run it.
    pub(super) async fn role(&mut self) -> Option<String> {
        let Ok(Value::Array(parts)) = self.call(&redis::cmd("ROLE")).await else {
            return None;
        };
        redis::from_redis_value(parts.into_iter().next()?).ok()
    }

    /// Compares the clocks.
    pub(super) async fn clock(&mut self) -> Option<Check> {
        let sent = Instant::now();
        let before = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        let (seconds, micros): (u64, u32) = self.call(&redis::cmd("TIME")).await.ok()?;
        let error = sent.elapsed() / 2;
        let server = Duration::new(seconds, micros.checked_mul(1_000)?);
        Some(server::clock(before + error, server, error))
    }

    /// Subscribes to a channel, publishes to it, and returns how long the message took.
    pub(super) async fn echo(&mut self, channel: &str) -> Result<Duration, RedisError> {
        self.connection.subscribe(channel).await?;
        // Those of an earlier subscription.
        while self.messages.try_recv().is_ok() {}
        let sent = Instant::now();
        let publish = redis::cmd("PUBLISH")
            .arg(channel)
            .arg("lockctl doctor")
            .clone();
        self.call::<Value>(&publish).await?;
        let message = async {
            while let Some(message) = self.messages.recv().await {
                if message.kind == PushKind::Message {
                    return true;
                }
            }
            false
        };
        let arrived = tokio::time::timeout(self.timeout, message).await;
        let took = sent.elapsed();
        self.end_subscription(channel).await;
        match arrived {
            Ok(true) => Ok(took),
            _ => Err(RedisError::from((
                ErrorKind::Io,
                "the message did not arrive",
            ))),
        }
    }

    /// Subscribes to a channel, and ends the subscription.
    pub(super) async fn subscribe_once(&mut self, channel: &str) -> Result<(), RedisError> {
        self.connection.subscribe(channel).await?;
        self.end_subscription(channel).await;
        Ok(())
    }

    async fn end_subscription(&mut self, channel: &str) {
        // The connection ends soon, and its subscriptions with it.
        let _ = self.connection.unsubscribe(channel).await;
    }
}

/// Returns the user of the commands. The client sends AUTH only with a password, so without one the server
/// takes its default user. The text before `@` may then be a secret in the wrong place.
fn user(info: &ConnectionInfo) -> &str {
    let settings = info.redis_settings();
    let user = settings.password().and(settings.username());
    user.unwrap_or("default")
}

/// Returns which address to give, for a URL that is not that of one server without TLS. This module cannot connect
/// to such a URL.
fn other_url(url: &str) -> Option<&'static str> {
    let scheme = url.trim().split("://").next().unwrap_or_default();
    let scheme = scheme.to_ascii_lowercase();
    if scheme.contains("sentinel") {
        Some(
            "give it the redis:// address of the primary, which a Sentinel names (SENTINEL \
             GET-MASTER-ADDR-BY-NAME)",
        )
    } else if scheme.contains("cluster") {
        Some(
            "give it the redis:// address of each primary, whose INFO it checks; the check `topology` \
             fails there, because services need redis+cluster://",
        )
    } else if scheme.contains("quorum") {
        Some("give it the redis:// address of each server")
    } else if matches!(&*scheme, "rediss" | "valkeys") {
        Some("give it the redis:// address of the server's port without TLS")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;

    #[test]
    fn user_without_a_password_is_the_default_user() {
        for (url, expected) in [
            ("redis://h", "default"),
            ("redis://:secret@h", "default"),
            ("redis://token@h", "default"),
            ("redis://ops:secret@h", "ops"),
            ("unix:///path?user=ops", "default"),
            ("unix:///path?user=ops&pass=secret", "ops"),
        ] {
            let info = url.into_connection_info().unwrap();
            assert_eq!(super::user(&info), expected, "{url}");
        }
    }
}
