//! One connection to one server process.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::aio::MultiplexedConnection;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionInfo, Pipeline, RedisError, Value};
use tokio::time::error::Elapsed;

use super::abilities::Abilities;
use super::access::{Access, kind_of_this_thread};
use super::credentials::{self, Issued};
use super::dial::{Setup, dial};
use super::errors::{connect_error, io_error, timed_out};
use super::report::ConnectionReport;
use super::scripts::{self, Script};
use super::transport::Transport;
use super::transport::frames::{self, is_error, text_range};
use crate::error::LockError;
use crate::protocol::acquisition::Origin;
use crate::protocol::clock::{Clock, Deadline, Moment};
use crate::protocol::clock_sync::ClockSync;
use crate::protocol::dialect::{Dialect, ReleaseMethod};
use crate::sync::Mutex;
use crate::telemetry::{ConnectionKind, Reporter, ServerAddress};

/// Load balancers and NAT gateways forget connections that are silent for some minutes, and then
/// drop packets without a reply. Without keepalive, the first call after a pause would time out.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Opens connections.
pub(super) struct Connector {
    pub(super) access: Arc<Access>,
    /// The address, for error texts.
    pub(super) address: Arc<str>,
    pub(super) server: Arc<ServerAddress>,
    /// The eviction policy was reported.
    pub(super) eviction_is_known: AtomicBool,
    timeout: Duration,
    pub(super) scripts: Vec<&'static Script>,
    /// `Native` or `Auto`, if the handshake has to find out which commands check the owner.
    pub(super) release: Option<ReleaseMethod>,
    pub(super) reporter: Arc<Reporter>,
    /// The version of the server at the latest handshake.
    server_version: Mutex<Option<Arc<str>>>,
}

/// A connection to a primary, with the scripts loaded.
pub(super) struct Connection {
    transport: Transport,
    pub(super) address: Arc<str>,
    /// The user that has logged in; `None` for the default user.
    pub(super) user: Option<Arc<str>>,
    pub(super) report: ConnectionReport,
    pub(super) origin: Origin,
    /// The server's time and run id when the connection began. The time is also the lowest
    /// fencing token that a grant over this connection may have.
    pub(super) first: ClockSync,
    /// The least difference between this machine's clock and the server's when the connection
    /// began.
    pub(super) clock_difference: Duration,
    /// What the server is known to support.
    pub(super) abilities: Abilities,
    /// Serializes commands that belong together, such as a transaction.
    pub(super) turn: tokio::sync::Mutex<()>,
    broken: AtomicBool,
    broken_by: Mutex<Option<LockError>>,
    /// The server has executed a command.
    has_answered: AtomicBool,
    /// The time after which a command without a reply shows that the connection is broken.
    patience: Duration,
    /// When the oldest command without a reply since the last reply was sent, in nanoseconds; zero
    /// when there is none. A count of timeouts would prove nothing: a command with little time left
    /// also times out on a good connection.
    silent_since: AtomicU64,
    /// When to log in with new credentials.
    renew_login_at: Mutex<Option<Moment>>,
}

/// A connection of the client library.
pub(super) struct LibraryConnection {
    pub(super) handle: MultiplexedConnection,
    /// The time and the run id of the server when the connection began.
    pub(super) first: ClockSync,
    /// What the provider of credentials gave for this connection.
    pub(super) issued: Option<Arc<Issued>>,
}

impl Connector {
    /// Creates a connector. Its connections are prepared for the dialect before the first command.
    pub(super) fn new(
        access: Arc<Access>,
        timeout: Duration,
        dialect: Option<Dialect>,
        reporter: Arc<Reporter>,
    ) -> Self {
        let release = match dialect {
            Some(Dialect::SetNxPx { release }) if release.asks_server() => Some(release),
            _ => None,
        };
        Self {
            address: Arc::clone(&access.address),
            server: Arc::clone(&access.server),
            eviction_is_known: AtomicBool::new(false),
            access,
            timeout,
            scripts: dialect.map(scripts::of).unwrap_or_default(),
            release,
            reporter,
            server_version: Mutex::default(),
        }
    }

    pub(super) fn server_version(&self) -> Option<Arc<str>> {
        self.server_version.lock().clone()
    }

    pub(super) fn set_server_version(&self, version: String) {
        *self.server_version.lock() = Some(version.into());
    }

    /// Returns the error for a caller whose time ran out before a connection was made.
    pub(super) fn no_answer(&self) -> LockError {
        timed_out(&format!(
            "cannot connect to the lock server at {}",
            self.address
        ))
    }

    /// Disables the client's own time limits: a dead server was seen to exceed them.
    pub(super) fn config() -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
    }

    /// Returns the report of a connection.
    pub(super) fn report(&self, kind: ConnectionKind) -> ConnectionReport {
        ConnectionReport {
            reporter: Arc::clone(&self.reporter),
            server: Arc::clone(&self.server),
            kind,
        }
    }

    /// Opens a connection for lock commands.
    pub(super) async fn connect(&self, limit: Duration) -> Result<Connection, LockError> {
        let failed = |error: RedisError| connect_error(&self.address, &error);
        let deadline = Deadline::after(Clock::System, limit.min(self.timeout));
        let (info, issued) = self.access.login(deadline.left()).await?;
        let kind = kind_of_this_thread();
        let connecting = async {
            let stream = dial(&info, &keepalive()).await.map_err(failed)?;
            let setup = Setup::begin(stream, &info, Self::config()).await;
            let mut setup = setup.map_err(|error| self.setup_error(&info, &error))?;
            let origin = next_origin();
            let mut handle = setup.connection.clone();
            let greeting = setup.drive(self.handshake(&mut handle, kind)).await;
            drop(handle);
            let greeting = greeting?;
            let stream = setup.finish().await.map_err(failed)?;
            Ok(Connection {
                transport: Transport::start(stream, Arc::clone(&self.reporter)),
                address: Arc::clone(&self.address),
                user: login_user(&info),
                report: self.report(kind),
                origin,
                first: greeting.first,
                clock_difference: greeting.clock_difference,
                abilities: greeting.abilities,
                turn: tokio::sync::Mutex::default(),
                broken: AtomicBool::new(false),
                broken_by: Mutex::default(),
                has_answered: AtomicBool::new(false),
                patience: self.timeout,
                silent_since: AtomicU64::new(0),
                renew_login_at: Mutex::new(issued.and_then(|issued| issued.renew_at)),
            })
        };
        self.within(deadline.left(), connecting).await
    }

    /// Opens a connection of the client library, for a subscription.
    pub(super) async fn connect_with(
        &self,
        config: AsyncConnectionConfig,
        limit: Duration,
    ) -> Result<LibraryConnection, LockError> {
        let deadline = Deadline::after(Clock::System, limit.min(self.timeout));
        let (info, issued) = self.access.login(deadline.left()).await?;
        let connecting = async {
            let client =
                Client::open(info.clone()).map_err(|e| connect_error(&self.address, &e))?;
            let mut handle = client
                .get_multiplexed_async_connection_with_config(&config)
                .await
                .map_err(|error| self.setup_error(&info, &error))?;
            let greeting = self.handshake(&mut handle, ConnectionKind::Pubsub).await?;
            Ok(LibraryConnection {
                handle,
                first: greeting.first,
                issued,
            })
        };
        self.within(deadline.left(), connecting).await
    }

    /// Renews the login of a connection from now on, if its credentials expire.
    pub(super) fn registers(&self, connection: &Arc<Connection>) {
        if let Some(source) = &self.access.credentials {
            source.register(connection);
        }
    }

    async fn within<T>(
        &self,
        limit: Duration,
        connecting: impl Future<Output = Result<T, LockError>>,
    ) -> Result<T, LockError> {
        tokio::time::timeout(limit, connecting)
            .await
            .unwrap_or_else(|_| Err(self.no_answer()))
    }
}

pub(super) fn keepalive() -> TcpKeepalive {
    TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE_INTERVAL)
}

/// Returns a number for a connection, never used twice in this process.
fn next_origin() -> Origin {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns the time that this machine's clock shows.
pub(super) fn since_epoch() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

impl Connection {
    pub(super) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Marks the connection broken, so that it is not used any more.
    pub(super) fn mark_broken(&self, error: &LockError) {
        let broken_by = error.clone();
        let replaced = self.broken_by.lock().replace(broken_by);
        drop(replaced);
        if !self.broken.swap(true, Ordering::AcqRel) {
            self.report.disconnected(Some(error));
        }
    }

    /// Returns whether the server has executed a command over this connection.
    pub(super) fn has_answered(&self) -> bool {
        self.has_answered.load(Ordering::Relaxed)
    }

    /// Returns the error that broke the connection.
    pub(super) fn broken_by(&self) -> Option<LockError> {
        self.broken_by.lock().clone()
    }

    /// Returns when to log in with new credentials.
    pub(super) fn renew_login_at(&self) -> Option<Moment> {
        *self.renew_login_at.lock()
    }

    /// Logs in with new credentials. A connection that the server refuses is not used any more: it has
    /// the rights of credentials that expire.
    pub(super) async fn log_in(&self, issued: &Issued, limit: Duration) -> Result<(), LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        // Not inside a transaction.
        let _turn = tokio::time::timeout(deadline.left(), self.turn.lock())
            .await
            .map_err(|_elapsed| timed_out(&self.unreachable_text()))?;
        match self.call(&issued.auth(), deadline.left()).await? {
            Ok(_) => {
                *self.renew_login_at.lock() = issued.renew_at;
                Ok(())
            }
            Err(error) => {
                let error = credentials::refused(&error);
                self.mark_broken(&error);
                Err(error)
            }
        }
    }

    pub(super) fn floor_us(&self) -> u64 {
        self.first.server_us
    }

    /// Sends one command and waits at most `limit` for its reply. The inner result is the server's.
    pub(super) async fn call(
        &self,
        command: &Cmd,
        limit: Duration,
    ) -> Result<Result<Value, RedisError>, LockError> {
        let write = |out: &mut Vec<u8>| command.write_packed_command(out);
        let reply = self.exchange(write, 1, limit).await?;
        let value = self.values(&reply)?.pop().unwrap_or(Ok(Value::Nil));
        Ok(value)
    }

    /// Sends many commands in one pipeline. Returns one reply for each, in order.
    pub(super) async fn call_all(
        &self,
        pipeline: &Pipeline,
        limit: Duration,
    ) -> Result<Vec<Result<Value, RedisError>>, LockError> {
        let write = |out: &mut Vec<u8>| out.extend(pipeline.get_packed_pipeline());
        let replies = self.exchange(write, pipeline.len(), limit).await?;
        self.values(&replies)
    }

    /// Sends one command that `write` encodes, and waits at most `limit` for its reply. Returns the
    /// bytes of the reply, or the error that the server replied.
    pub(super) async fn call_encoded(
        &self,
        write: impl FnMut(&mut Vec<u8>) + Unpin,
        limit: Duration,
    ) -> Result<Result<EncodedReply, RedisError>, LockError> {
        let reply = self.exchange(write, 1, limit).await?;
        if is_error(&reply) {
            let value = self.values(&reply)?.pop().unwrap_or(Ok(Value::Nil));
            return Ok(value.map(|_| EncodedReply(reply)));
        }
        self.has_answered.store(true, Ordering::Relaxed);
        Ok(Ok(EncodedReply(reply)))
    }

    async fn exchange(
        &self,
        write: impl FnMut(&mut Vec<u8>) + Unpin,
        count: usize,
        limit: Duration,
    ) -> Result<Vec<u8>, LockError> {
        let replies = tokio::time::timeout(limit, self.transport.call(write, count)).await;
        self.classify(replies, limit)
    }

    /// Reads the replies. An error of the server is a reply.
    fn values(&self, replies: &[u8]) -> Result<Vec<Result<Value, RedisError>>, LockError> {
        let values = frames::parse_all(replies).map_err(|error| self.unusable(&error))?;
        let values: Vec<_> = values.into_iter().map(Value::extract_error).collect();
        if values.iter().any(Result::is_ok) {
            self.has_answered.store(true, Ordering::Relaxed);
        }
        Ok(values)
    }

    /// Records a command that was sent `limit` ago and got no reply. Returns whether the server has
    /// been silent for at least `span`.
    fn is_silent_for(&self, span: Duration, limit: Duration) -> bool {
        let now = Clock::System.now();
        let sent = now.minus(limit).as_nanos().max(1);
        let known = self.silent_since.load(Ordering::Relaxed);
        if known == 0 {
            // A concurrent call that also sees zero records the same silence.
            self.silent_since.store(sent, Ordering::Relaxed);
        }
        let since = if known == 0 { sent } else { known.min(sent) };
        now.since(Moment::from_nanos(since)) >= span
    }

    fn unusable(&self, error: &RedisError) -> LockError {
        io_error(self.unreachable_text(), error)
    }

    fn unreachable_text(&self) -> String {
        format!("cannot reach the lock server at {}", self.address)
    }

    /// Records what a missing reply says about the connection.
    fn classify(
        &self,
        replies: Result<std::io::Result<Vec<u8>>, Elapsed>,
        limit: Duration,
    ) -> Result<Vec<u8>, LockError> {
        match replies {
            Ok(Ok(replies)) => {
                self.silent_since.store(0, Ordering::Relaxed);
                Ok(replies)
            }
            Ok(Err(error)) => {
                let error = self.unusable(&error.into());
                self.mark_broken(&error);
                Err(error)
            }
            Err(_elapsed) => {
                let error = timed_out(&self.unreachable_text());
                // A network that drops packets never reports that the connection is dead.
                if limit >= self.patience || self.is_silent_for(self.patience / 2, limit) {
                    self.mark_broken(&error);
                }
                Err(error)
            }
        }
    }
}

/// The bytes of one reply that is not an error.
pub(super) struct EncodedReply(Vec<u8>);

impl EncodedReply {
    /// Returns the text of a reply that is one string.
    pub(super) fn text(&self) -> Option<&[u8]> {
        text_range(&self.0).map(|range| &self.0[range])
    }
}
/// Returns the user that logs in. Without a password there is no login, and the text in the place of the
/// user may be a password.
fn login_user(info: &ConnectionInfo) -> Option<Arc<str>> {
    let settings = info.redis_settings();
    settings.password()?;
    settings.username().map(Into::into)
}
