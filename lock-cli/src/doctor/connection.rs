//! The connection of `doctor`.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, FromRedisValue,
    IntoConnectionInfo, Pipeline, ProtocolVersion, PushInfo, PushKind, RedisError, Value,
};
use tokio::sync::mpsc;

use super::info::Info;
use super::{Check, server};
use crate::args::GlobalArgs;
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
    pub(super) async fn connect(url: &str, global: &GlobalArgs) -> Result<Self, Failure> {
        check_scheme(url)?;
        let info = url.into_connection_info().map_err(|error| {
            let text = format!("the lock URL is invalid ({error}); use redis:// or unix://");
            Failure::new(Exit::Config, "invalid-url", text)
        })?;
        let settings = info.redis_settings().clone();
        let info = info.set_redis_settings(settings.set_protocol(ProtocolVersion::RESP3));
        let address = info.addr().to_string();
        let failed = |error: &RedisError| failure(error, &address, global);
        let client = Client::open(info.clone()).map_err(|error| failed(&error))?;
        let (sender, messages) = mpsc::unbounded_channel();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(global.timeout))
            .set_response_timeout(Some(global.timeout))
            .set_push_sender(sender);
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        let connection = connecting.await.map_err(|error| failed(&error))?;
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
        self.info.redis_settings().username().unwrap_or("default")
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
        let _ = self.connection.unsubscribe(channel).await;
        match arrived {
            Ok(true) => Ok(took),
            _ => Err(RedisError::from((
                ErrorKind::Io,
                "the message did not arrive",
            ))),
        }
    }

    /// Whether the server is another machine.
    pub(super) fn is_remote(info: &ConnectionInfo) -> bool {
        match info.addr() {
            ConnectionAddr::Tcp(host, _) => {
                let address = host.parse::<std::net::IpAddr>();
                host != "localhost" && !address.is_ok_and(|address| address.is_loopback())
            }
            _ => false,
        }
    }
}

/// Says what this version cannot connect to.
fn check_scheme(url: &str) -> Result<(), Failure> {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    let is_known = |known: &str| scheme.eq_ignore_ascii_case(known);
    if ["redis", "unix", "redis+unix"].into_iter().any(is_known) {
        return Ok(());
    }
    // The library has the texts for TLS, Sentinel and clusters, and for all other schemes.
    Err(Failure::new(
        Exit::Config,
        "invalid-url",
        "this version checks servers at redis:// and unix://; TLS, Sentinel and clusters are not \
         supported yet",
    ))
}

fn failure(error: &RedisError, address: &str, global: &GlobalArgs) -> Failure {
    let text = error.to_string();
    let reason = text.split(" (os error").next().unwrap_or_default();
    let is_denied = matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"))
        || error.kind() == ErrorKind::AuthenticationFailed;
    if is_denied {
        let text = format!("the server at {address} refuses the user or the password ({reason})");
        return Failure::new(Exit::Denied, "authentication", text);
    }
    let mut letters = reason.chars();
    let first = letters.next().into_iter().flat_map(char::to_lowercase);
    let reason: String = first.chain(letters).collect();
    let source = global.url_source();
    let text =
        format!("cannot reach {address} ({reason}); is the server running? URL from {source}");
    Failure::new(Exit::Unavailable, "unreachable", text)
}
