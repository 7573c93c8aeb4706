//! One connection to one life of a server.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
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
use tracing::warn;

use super::errors::{connect_error, error_text, io_error, lock_error, timed_out};
use super::reply::micros_of;
use super::scripts::Script;
use crate::backend::Origin;
use crate::error::{BackendErrorKind, LockError};
use crate::protocol::clock::{Clock, Moment};
use crate::protocol::clock_sync::{ClockSync, UNKNOWN_RUN_ID};
use crate::stats::Counters;

use crate::protocol::wire::{MAX_LABEL, tidy};
use crate::sync::Mutex;

/// Balancers and address translators forget a connection that is silent for some minutes, and drop
/// what comes then without a word: the first call after a pause would cost a timeout.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Makes connections.
pub(super) struct Connector {
    client: Client,
    /// For error texts.
    address: Arc<str>,
    timeout: Duration,
    scripts: Vec<&'static Script>,
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
            let (first, clock_difference) = self.preflight(&mut handle).await?;
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

    /// One pipeline: is it a primary, which life of which server, what time is it, and the scripts.
    async fn preflight(
        &self,
        handle: &mut MultiplexedConnection,
    ) -> Result<(ClockSync, Duration), LockError> {
        let mut pipeline = Pipeline::new();
        pipeline
            .cmd("ROLE")
            .cmd("INFO")
            .arg("server")
            .arg("memory")
            .arg("cluster")
            .cmd("TIME");
        for script in &self.scripts {
            pipeline.cmd("SCRIPT").arg("LOAD").arg(script.source());
        }
        pipeline.ignore_errors();
        let sent = Clock::System.now();
        let wall_before = since_epoch();
        let replies = handle
            .send_packed_commands(&pipeline, 0, pipeline.len())
            .await
            .map_err(|error| connect_error(&self.address, &error))?;
        let wall_after = since_epoch();
        let mut replies = replies.into_iter().map(Value::extract_error);
        let mut next = || replies.next().unwrap_or(Ok(Value::Nil));
        let (role, info, time) = (next(), next(), next());
        // A sentinel tells its role, and not the time.
        let role = role.map_err(|error| self.role_is_not_told(&error));
        if let Ok(role) = &role {
            self.check_role(role)?;
        }
        // A server that cannot say the time cannot serve at all now; its reason is the error.
        let server_us = time
            .and_then(|time| Ok(redis::from_redis_value(time)?))
            .map(|(seconds, micros): (u64, u64)| micros_of(seconds, micros))
            .map_err(|error| {
                let text = format!("the lock server at {} refuses commands", self.address);
                lock_error(text, &error)
            })?;
        if let Err(Some(error)) = role {
            return Err(error);
        }
        if info.is_err() {
            // Every user may greet, and the answer has the mode too.
            let greeting = handle.send_packed_command(&redis::cmd("HELLO")).await;
            let mode = greeting.ok().and_then(|greeting| text_of(greeting, "mode"));
            if mode.as_deref() == Some("cluster") {
                return Err(self.is_clustered());
            }
        }
        let run_id = self.run_id(info)?;
        if let Some(Err(error)) = replies.find(Result::is_err) {
            // Then each is sent with its text once.
            let error = error_text(&error);
            self.counters
                .trace(|| warn!(error, "the lock server does not load scripts"));
        }
        let wall = Duration::from_micros(server_us);
        // The server told its time at some moment in between.
        let difference = wall_before
            .saturating_sub(wall)
            .max(wall.saturating_sub(wall_after));
        let first = ClockSync {
            sent,
            server_us,
            run_id,
        };
        Ok((first, difference))
    }

    fn check_role(&self, role: &Value) -> Result<(), LockError> {
        let role = match role {
            Value::Array(parts) => match parts.first() {
                Some(Value::BulkString(role)) => role.as_slice(),
                _ => b"",
            },
            // Not a server that knows roles.
            _ => return Ok(()),
        };
        let address = &self.address;
        match role {
            b"master" => Ok(()),
            b"sentinel" => Err(LockError::advised(
                BackendErrorKind::Unsupported,
                format!("the server at {address} is a Redis Sentinel, which is not supported yet"),
                "connect to the primary that it watches",
            )),
            _ => Err(LockError::backend(
                BackendErrorKind::NotPrimary,
                format!("the lock server at {address} is a replica"),
            )),
        }
    }

    /// Why the role is not known; `None` where one can do without it.
    fn role_is_not_told(&self, error: &RedisError) -> Option<LockError> {
        if error.code() == Some("NOPERM") {
            let address = &self.address;
            self.counters.trace(|| {
                warn!(%address, "the user may not run ROLE: a replica is not told from a primary");
            });
            return None;
        }
        let text = format!("the lock server at {} does not tell its role", self.address);
        Some(lock_error(text, error))
    }

    /// A number for the life of the server: its run id. To a server that does not tell nobody
    /// listens for grants, since they may be another server's.
    fn run_id(&self, info: Result<Value, RedisError>) -> Result<u64, LockError> {
        let info: Result<String, RedisError> =
            info.and_then(|info| Ok(redis::from_redis_value(info)?));
        let info = match info {
            Ok(info) => info,
            Err(error) => {
                let error = error_text(&error);
                self.counters.trace(|| {
                    warn!(
                        error,
                        "the user may not run INFO: waiters ask instead of being told"
                    );
                });
                return Ok(UNKNOWN_RUN_ID);
            }
        };
        let field = |name: &str| {
            info.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .map(str::trim)
        };
        self.check_version(field("redis_version"))?;
        if field("cluster_enabled") == Some("1") {
            return Err(self.is_clustered());
        }
        self.check_eviction(field("maxmemory"), field("maxmemory_policy"));
        let Some(run_id) = field("run_id") else {
            return Ok(UNKNOWN_RUN_ID);
        };
        let mut hasher = DefaultHasher::new();
        run_id.hash(&mut hasher);
        Ok(hasher.finish().max(UNKNOWN_RUN_ID + 1))
    }

    fn is_clustered(&self) -> LockError {
        let address = &self.address;
        LockError::advised(
            BackendErrorKind::Unsupported,
            format!(
                "the server at {address} is a node of a Redis Cluster, which is not supported yet"
            ),
            "connect to a primary that is not part of a cluster",
        )
    }

    /// A server that makes room by deleting keys deletes locks.
    fn check_eviction(&self, limit: Option<&str>, policy: Option<&str>) {
        let (Some(limit), Some(policy)) = (limit, policy) else {
            return;
        };
        if limit != "0" && policy != "noeviction" {
            let policy = tidy(policy, MAX_LABEL);
            self.counters.trace(|| {
                warn!(
                    policy,
                    "the lock server may evict locks when its memory is full: set maxmemory-policy to noeviction"
                );
            });
        }
    }

    fn check_version(&self, version: Option<&str>) -> Result<(), LockError> {
        let major = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
        match major {
            Some(major) if major < 7 => Err(LockError::backend(
                BackendErrorKind::Unsupported,
                format!(
                    "the lock server at {} is Redis {}",
                    self.address,
                    tidy(version.unwrap_or_default(), MAX_LABEL)
                ),
            )),
            _ => Ok(()),
        }
    }
}

/// The text of a field of a map.
fn text_of(map: Value, field: &str) -> Option<String> {
    let Value::Map(fields) = map else {
        return None;
    };
    let mut fields = fields.into_iter();
    let (_, value) = fields.find(|(name, _)| {
        let name = redis::from_redis_value_ref::<String>(name);
        name.is_ok_and(|name| name == field)
    })?;
    redis::from_redis_value(value).ok()
}

/// Numbers for connections, never used twice in this process.
fn next_origin() -> Origin {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// What this machine's clock shows.
fn since_epoch() -> Duration {
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
