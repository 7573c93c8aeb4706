//! One connection to one life of a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ErrorKind, IntoConnectionInfo, Pipeline,
    ProtocolVersion, RedisError, Value,
};
use tokio::time::error::Elapsed;

use super::errors::{connect_error, error_text, io_error, timed_out};
use super::scripts::Script;
use crate::backend::Origin;
use crate::error::{BackendErrorKind, LockError};
use crate::protocol::clock::{Clock, Moment};
use crate::protocol::clock_sync::ClockSync;
use crate::stats::Counters;

use crate::sync::Mutex;

/// Balancers and address translators forget a connection that is silent for some minutes, and drop
/// what comes then without a word: the first call after a pause would cost a timeout.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Makes connections.
pub(super) struct Connector {
    client: Client,
    /// For error texts.
    pub(super) address: Arc<str>,
    timeout: Duration,
    pub(super) scripts: Vec<&'static Script>,
    pub(super) counters: Arc<Counters>,
}

/// A connection to a primary, with the scripts loaded.
pub(super) struct Connection {
    handle: MultiplexedConnection,
    address: Arc<str>,
    pub(super) origin: Origin,
    /// The server's time, and its life, as the connection began. The time is also the lowest
    /// token that may be given over this connection.
    pub(super) first: ClockSync,
    /// By how much this machine's clock and the server's differed at least, as it began.
    pub(super) clock_difference: Duration,
    /// For commands that only make sense one after another on one connection.
    pub(super) turn: tokio::sync::Mutex<()>,
    broken: AtomicBool,
    broken_by: Mutex<Option<LockError>>,
    /// The server carried out a command.
    has_answered: AtomicBool,
    /// How long a command may take before the connection is to blame.
    patience: Duration,
    /// When the first command was sent, in nanoseconds, of those without an answer since the last
    /// answer; zero when there is none. Commands with little time left time out on good connections
    /// too, so that their number says nothing.
    silent_since: AtomicU64,
}

impl Connector {
    /// Of connections on which the server knows these scripts from the first command on.
    pub(super) fn new(
        url: &str,
        timeout: Duration,
        scripts: Vec<&'static Script>,
        counters: Arc<Counters>,
    ) -> Result<Self, LockError> {
        let invalid = |error: RedisError| {
            let text = format!("the lock URL is not understood ({})", error_text(&error));
            LockError::backend(BackendErrorKind::InvalidUrl, text)
        };
        let info: ConnectionInfo = url.into_connection_info().map_err(invalid)?;
        let config = info
            .redis_settings()
            .clone()
            .set_protocol(ProtocolVersion::RESP3);
        let info = info
            .set_redis_settings(config)
            // Off by default, and then a command waits for the acknowledgment of the last one.
            .set_tcp_settings(
                TcpSettings::default().set_nodelay(true).set_keepalive(
                    TcpKeepalive::new()
                        .with_time(KEEPALIVE)
                        .with_interval(KEEPALIVE_INTERVAL),
                ),
            );
        let address = info.addr().to_string().into();
        let client = Client::open(info).map_err(invalid)?;
        Ok(Self {
            client,
            address,
            timeout,
            scripts,
            counters,
        })
    }

    /// Nothing came of connecting within the limit of whoever waits for it.
    pub(super) fn no_answer(&self) -> LockError {
        timed_out(&format!(
            "cannot connect to the lock server at {}",
            self.address
        ))
    }

    /// The time limits are ours: the client's were seen to be overrun by a dead server.
    pub(super) fn config() -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
    }

    pub(super) async fn connect(&self, limit: Duration) -> Result<Connection, LockError> {
        self.connect_with(Self::config(), limit).await
    }

    pub(super) async fn connect_with(
        &self,
        config: AsyncConnectionConfig,
        limit: Duration,
    ) -> Result<Connection, LockError> {
        let connecting = async {
            let mut handle = self
                .client
                .get_multiplexed_async_connection_with_config(&config)
                .await
                .map_err(|error| connect_error(&self.address, &error))?;
            let origin = next_origin();
            let (first, clock_difference) = self.handshake(&mut handle).await?;
            Ok(Connection {
                handle,
                address: Arc::clone(&self.address),
                origin,
                first,
                clock_difference,
                turn: tokio::sync::Mutex::default(),
                broken: AtomicBool::new(false),
                broken_by: Mutex::default(),
                has_answered: AtomicBool::new(false),
                patience: self.timeout,
                silent_since: AtomicU64::new(0),
            })
        };
        tokio::time::timeout(limit.min(self.timeout), connecting)
            .await
            .unwrap_or_else(|_| Err(self.no_answer()))
    }
}

/// Numbers for connections, never used twice in this process.
fn next_origin() -> Origin {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// What this machine's clock shows.
pub(super) fn since_epoch() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

impl Connection {
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Nobody uses it from now on.
    pub(super) fn mark_broken(&self, error: &LockError) {
        let error = error.clone();
        let replaced = self.broken_by.lock().replace(error);
        drop(replaced);
        self.broken.store(true, Ordering::Release);
    }

    /// Whether the server did anything over it but refuse.
    pub(super) fn has_answered(&self) -> bool {
        self.has_answered.load(Ordering::Relaxed)
    }

    /// Why it is broken, where it is.
    pub(super) fn broken_by(&self) -> Option<LockError> {
        self.broken_by.lock().clone()
    }

    pub(super) fn floor_us(&self) -> u64 {
        self.first.server_us
    }

    /// A handle of its own for subscribing.
    pub(super) fn handle(&self) -> MultiplexedConnection {
        self.handle.clone()
    }

    /// Sends one command and waits for its answer, at most for `limit`. The inner result is the
    /// server's.
    pub(super) async fn call(
        &self,
        command: &Cmd,
        limit: Duration,
    ) -> Result<Result<Value, RedisError>, LockError> {
        let mut handle = self.handle.clone();
        let answer = tokio::time::timeout(limit, handle.send_packed_command(command)).await;
        let answer = self.sorted(answer, limit)?.and_then(Value::extract_error);
        if answer.is_ok() {
            self.has_answered.store(true, Ordering::Relaxed);
        }
        Ok(answer)
    }

    /// Sends many commands in one go; an answer for each.
    pub(super) async fn call_all(
        &self,
        pipeline: &Pipeline,
        limit: Duration,
    ) -> Result<Vec<Result<Value, RedisError>>, LockError> {
        let mut handle = self.handle.clone();
        let sending = handle.send_packed_commands(pipeline, 0, pipeline.len());
        let answers = tokio::time::timeout(limit, sending).await;
        match self.sorted(answers, limit)? {
            Ok(answers) => {
                let answers: Vec<_> = answers.into_iter().map(Value::extract_error).collect();
                if answers.iter().any(Result::is_ok) {
                    self.has_answered.store(true, Ordering::Relaxed);
                }
                Ok(answers)
            }
            Err(error) => Err(self.unusable(&error)),
        }
    }

    /// A command that was sent `limit` ago has had no answer. Whether none has come for so long.
    fn is_silent_for(&self, span: Duration, limit: Duration) -> bool {
        let now = Clock::System.now();
        let sent = now.minus(limit).as_nanos().max(1);
        let known = self.silent_since.load(Ordering::Relaxed);
        if known == 0 {
            // Whoever else does so at the same time saw the same silence.
            self.silent_since.store(sent, Ordering::Relaxed);
        }
        let since = if known == 0 { sent } else { known.min(sent) };
        now.since(Moment::from_nanos(since)) >= span
    }

    fn unusable(&self, error: &RedisError) -> LockError {
        io_error(self.cannot_ask(), error)
    }

    fn cannot_ask(&self) -> String {
        format!("cannot ask the lock server at {}", self.address)
    }

    /// Tells the server's errors, which are answers, from those of the way to it.
    fn sorted<T>(
        &self,
        answer: Result<Result<T, RedisError>, Elapsed>,
        limit: Duration,
    ) -> Result<Result<T, RedisError>, LockError> {
        match answer {
            Ok(Err(error)) if !is_from_server(&error) => {
                let error = self.unusable(&error);
                self.mark_broken(&error);
                Err(error)
            }
            Ok(answer) => {
                self.silent_since.store(0, Ordering::Relaxed);
                Ok(answer)
            }
            Err(_elapsed) => {
                let error = timed_out(&self.cannot_ask());
                // Behind a black hole nothing would ever tell that the connection is dead.
                if limit >= self.patience || self.is_silent_for(self.patience / 2, limit) {
                    self.mark_broken(&error);
                }
                Err(error)
            }
        }
    }
}

fn is_from_server(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension)
}
