//! One connection to one server process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::aio::MultiplexedConnection;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    AsyncConnectionConfig, Cmd, Pipeline, ProtocolVersion, RedisConnectionInfo, RedisError, Value,
};
use tokio::time::error::Elapsed;

use super::access::{Access, kind_of_this_thread};
use super::credentials::{self, Issued};
use super::dial::{Setup, dial};
use super::errors::{connect_error, error_text, io_error, is_resp3_unknown, timed_out};
use super::handshake::Greeting;
use super::node::{Node, Whereabouts};
use super::report::ConnectionReport;
use super::scripts::Script;
use super::transport::Transport;
use super::transport::frames::{self, is_error, text_range};
use crate::error::{BackendErrorKind, LockError};
use crate::protocol::acquisition::Origin;
use crate::protocol::clock::{Clock, Deadline, Moment};
use crate::protocol::clock_sync::ClockSync;
use crate::sync::Mutex;
use crate::telemetry::{ConnectionKind, LockEvent, Reporter};

/// Load balancers and NAT gateways forget connections that are silent for some minutes, and then
/// drop packets without a reply. Without keepalive, the first call after a pause would time out.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Makes the node take the next command, although the slot is still on its way to it.
const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";

/// Opens connections.
pub(super) struct Connector {
    pub(super) access: Arc<Access>,
    pub(super) whereabouts: Whereabouts,
    /// The eviction policy was reported.
    pub(super) eviction_is_known: AtomicBool,
    /// A primary without `min-replicas-to-write` was reported.
    pub(super) lone_writes_are_known: AtomicBool,
    /// Each command follows an `ASKING`, for keys of a slot that arrives at this node.
    is_asking: bool,
    timeout: Duration,
    pub(super) scripts: Vec<&'static Script>,
    pub(super) reporter: Arc<Reporter>,
    /// The version of the server at the latest handshake.
    server_version: Mutex<Option<Arc<str>>>,
}

/// A connection to a primary, with the scripts loaded.
pub(super) struct Connection {
    transport: Transport,
    pub(super) node: Arc<Node>,
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
    /// Serializes commands that belong together, such as a transaction.
    pub(super) turn: tokio::sync::Mutex<()>,
    broken: AtomicBool,
    /// Another server is the primary now: replies that arrive here do not count.
    retired: AtomicBool,
    is_asking: bool,
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

/// A connection after the handshake.
struct Opened {
    node: Arc<Node>,
    setup: Setup,
    login: RedisConnectionInfo,
    issued: Option<Arc<Issued>>,
    greeting: Greeting,
}

/// A connection of the client library.
pub(super) struct LibraryConnection {
    pub(super) handle: MultiplexedConnection,
    pub(super) node: Arc<Node>,
    /// The time and the run id of the server when the connection began.
    pub(super) first: ClockSync,
    /// What the provider of credentials gave for this connection.
    pub(super) issued: Option<Arc<Issued>>,
}

impl Connector {
    /// Creates a connector. Its connections load these scripts before the first command.
    pub(super) fn new(
        access: Arc<Access>,
        whereabouts: Whereabouts,
        timeout: Duration,
        scripts: Vec<&'static Script>,
        reporter: Arc<Reporter>,
    ) -> Self {
        Self {
            whereabouts,
            is_asking: false,
            eviction_is_known: AtomicBool::new(false),
            lone_writes_are_known: AtomicBool::new(false),
            access,
            timeout,
            scripts,
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

    /// Makes each command of the connections follow an `ASKING`.
    pub(super) fn asking(mut self) -> Self {
        self.is_asking = true;
        self
    }

    /// Returns the server of the next connection.
    pub(super) fn node(&self) -> Arc<Node> {
        self.whereabouts.node()
    }

    /// Returns the error for a caller whose time ran out before a connection was made.
    pub(super) fn no_answer(&self) -> LockError {
        no_answer_of(&self.node())
    }

    /// Disables the client's own time limits: a dead server was seen to exceed them.
    pub(super) fn config() -> AsyncConnectionConfig {
        AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
    }

    /// Returns the report of a connection to a server.
    pub(super) fn report(&self, node: &Node, kind: ConnectionKind) -> ConnectionReport {
        ConnectionReport {
            reporter: Arc::clone(&self.reporter),
            server: Arc::clone(&node.server),
            kind,
        }
    }

    /// Opens a connection for lock commands.
    pub(super) async fn connect(&self, limit: Duration) -> Result<Connection, LockError> {
        let kind = kind_of_this_thread();
        let opened = self.open(kind, Self::config, limit).await?;
        let node = opened.node;
        let stream = opened.setup.finish().await;
        let stream = stream.map_err(|error| connect_error(&node.text, &error))?;
        Ok(Connection {
            transport: Transport::start(stream, Arc::clone(&self.reporter)),
            user: login_user(&opened.login),
            report: self.report(&node, kind),
            node,
            origin: next_origin(),
            first: opened.greeting.first,
            clock_difference: opened.greeting.clock_difference,
            turn: tokio::sync::Mutex::default(),
            broken: AtomicBool::new(false),
            retired: AtomicBool::new(false),
            is_asking: self.is_asking,
            broken_by: Mutex::default(),
            has_answered: AtomicBool::new(false),
            patience: self.timeout,
            silent_since: AtomicU64::new(0),
            renew_login_at: Mutex::new(opened.issued.and_then(|issued| issued.renew_at)),
        })
    }

    /// Opens a connection of the client library, for a subscription.
    pub(super) async fn connect_with(
        &self,
        config: impl Fn() -> AsyncConnectionConfig,
        limit: Duration,
    ) -> Result<LibraryConnection, LockError> {
        if self.access.is_resp2() {
            return Err(LockError::advised(
                BackendErrorKind::Unsupported,
                "connections in RESP2 get no notifications",
                "waiters poll; for notifications, use a server with RESP3 and no `protocol=2`",
            ));
        }
        let opened = self.open(ConnectionKind::Pubsub, config, limit).await?;
        Ok(LibraryConnection {
            handle: opened.setup.spawn(),
            node: opened.node,
            first: opened.greeting.first,
            issued: opened.issued,
        })
    }

    /// Connects to the server, logs in, and checks the server.
    async fn open(
        &self,
        kind: ConnectionKind,
        config: impl Fn() -> AsyncConnectionConfig,
        limit: Duration,
    ) -> Result<Opened, LockError> {
        let deadline = Deadline::after(Clock::System, limit.min(self.timeout));
        let node = self.node();
        let (mut login, issued) = self.access.login(deadline.left()).await?;
        let is_securing = AtomicBool::new(false);
        let opening = async {
            loop {
                let tls = self.access.tls.as_ref();
                let stream = dial(&node.address, tls, &keepalive(), &is_securing).await?;
                let stream = stream.map_err(|error| connect_error(&node.text, &error))?;
                let setup = Setup::begin(stream, &login, config()).await;
                let mut setup = match setup {
                    Err(error) if is_resp3_unknown(&error) && self.falls_back(&node, &error) => {
                        login = login.set_protocol(ProtocolVersion::RESP2);
                        continue;
                    }
                    setup => setup.map_err(|error| self.setup_error(&node, login.db(), &error))?,
                };
                let mut handle = setup.connection.clone();
                let greeting = setup.drive(self.handshake(&node, &mut handle, kind)).await;
                drop(handle);
                return Ok((setup, login, greeting?));
            }
        };
        let opened = tokio::time::timeout(deadline.left(), opening).await;
        let opened = opened.unwrap_or_else(|_elapsed| {
            if is_securing.load(Ordering::Relaxed) {
                let text = format!("the lock server at {} does not answer in TLS", node.text);
                return Err(LockError::advised(
                    BackendErrorKind::TimedOut,
                    format!("{text}: no answer in time"),
                    "does that port speak TLS? Without TLS, use redis:// instead of rediss://",
                ));
            }
            Err(no_answer_of(&node))
        });
        self.whereabouts.tried(&node, opened.as_ref().err());
        let (setup, login, greeting) = opened?;
        node.raise_lead(self.access.lead_us(greeting.epoch));
        Ok(Opened {
            node,
            setup,
            login,
            issued,
            greeting,
        })
    }

    /// Makes connections speak RESP2, if the URL does not forbid it.
    fn falls_back(&self, node: &Node, error: &RedisError) -> bool {
        if self.access.fall_back() {
            self.reporter.emit(&LockEvent::ServerRestricted {
                server: &node.server,
                command: "HELLO",
                effect: "connections speak RESP2, which has no notifications, and waiters poll",
                error: &error_text(error),
            });
        }
        self.access.is_resp2() && self.access.may_fall_back
    }

    /// Renews the login of a connection from now on, if its credentials expire.
    pub(super) fn registers(&self, connection: &Arc<Connection>) {
        if let Some(source) = &self.access.credentials {
            source.register(connection);
        }
    }
}

fn no_answer_of(node: &Node) -> LockError {
    timed_out(&format!(
        "cannot connect to the lock server at {}",
        node.text
    ))
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

    /// Returns the lowest fencing token that a grant may have.
    pub(super) fn floor_us(&self) -> u64 {
        self.first.server_us.saturating_add(self.lead_us())
    }

    /// Returns how far the seed of a counter lies ahead of the server's time.
    pub(super) fn lead_us(&self) -> u64 {
        self.node.lead_us()
    }

    /// Stops using the connection, because another server is the primary now. Callers that wait for a
    /// reply get an error.
    pub(super) fn retire(&self) {
        let error = LockError::backend(
            BackendErrorKind::NotPrimary,
            format!("the lock server at {} is no primary any more", self.node.text),
        );
        self.retired.store(true, Ordering::Release);
        self.mark_broken(&error);
        self.transport.abort();
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
        let write = |out: &mut Vec<u8>| {
            if !self.is_asking {
                out.extend(pipeline.get_packed_pipeline());
                return;
            }
            for (at, command) in pipeline.cmd_iter().enumerate() {
                if at > 0 {
                    out.extend(ASKING);
                }
                command.write_packed_command(out);
            }
        };
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

    /// Sends `count` commands that `write` encodes. Behind the first one, `write` adds `ASKING` where it is
    /// needed.
    async fn exchange(
        &self,
        mut write: impl FnMut(&mut Vec<u8>) + Unpin,
        count: usize,
        limit: Duration,
    ) -> Result<Vec<u8>, LockError> {
        if self.is_asking {
            let write = |out: &mut Vec<u8>| {
                out.extend(ASKING);
                write(out);
            };
            let replies = tokio::time::timeout(limit, self.transport.call(write, 2 * count)).await;
            let replies = self.classify(replies, limit)?;
            return frames::every_second(&replies).map_err(|error| self.unusable(&error));
        }
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
        format!("cannot reach the lock server at {}", self.node.text)
    }

    /// Records what a missing reply says about the connection.
    fn classify(
        &self,
        replies: Result<std::io::Result<Vec<u8>>, Elapsed>,
        limit: Duration,
    ) -> Result<Vec<u8>, LockError> {
        match replies {
            Ok(_) if self.retired.load(Ordering::Acquire) => {
                Err(self.broken_by().unwrap_or_else(|| timed_out(&self.unreachable_text())))
            }
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
fn login_user(login: &RedisConnectionInfo) -> Option<Arc<str>> {
    login.password()?;
    login.username().map(Into::into)
}
