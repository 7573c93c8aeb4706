//! Opens connections: dials, logs in, and checks the server.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::io::tcp::socket2::TcpKeepalive;
use redis::{ProtocolVersion, RedisConnectionInfo};
use tokio::task::JoinSet;

use super::access::{Access, kind_of_this_thread};
use super::connection::Connection;
use super::credentials::Issued;
use super::dial::{Stream, dial, resolve};
use super::errors::{connect_error, timed_out};
use super::handshake::Greeting;
use super::link::Link;
use super::location::Location;
use super::login::{Fallback, LoggedIn, LoginError, dial_and_log_in};
use super::node::{EpochReply, Node};
use super::place::Protocol;
use super::report::ConnectionReport;
use crate::error::{BackendErrorKind, LockError};
use crate::sync::{Mutex, assert_no_mutex_held};
use crate::telemetry::{ConnectionKind, LockEvent, Reporter};
use lock_protocol::clock::{Clock, Deadline};
use lock_protocol::clock_sync::ClockSync;
use lock_protocol::dialect::{Dialect, ReleaseMethod};
use lock_protocol::scripts::Script;

/// Load balancers and NAT gateways forget connections that are silent for some minutes, and then
/// drop packets without a reply. Without keepalive, the first call after a pause would time out.
const KEEPALIVE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Opens connections.
pub(super) struct Connector {
    pub(super) access: Arc<Access>,
    pub(super) location: Location,
    /// The eviction policy was reported.
    pub(super) eviction_is_known: AtomicBool,
    /// A primary without `min-replicas-to-write` was reported.
    pub(super) lone_writes_are_known: AtomicBool,
    /// A server whose role cannot be read was reported.
    pub(super) unknown_role_is_known: AtomicBool,
    /// Each command follows an `ASKING`, for keys of a slot that arrives at this node.
    is_asking: bool,
    pub(super) timeout: Duration,
    pub(super) scripts: Vec<&'static Script>,
    /// `Native` or `Auto`, if the handshake has to find out which commands check the owner.
    pub(super) release: Option<ReleaseMethod>,
    pub(super) reporter: Arc<Reporter>,
    /// The version of the server at the latest handshake.
    server_version: Mutex<Option<Arc<str>>>,
}

/// A connection after the handshake.
struct Opened {
    node: Arc<Node>,
    stream: Stream,
    protocol: ProtocolVersion,
    login: RedisConnectionInfo,
    issued: Option<Arc<Issued>>,
    greeting: Greeting,
}

/// What is known of a connection that receives messages.
pub(super) struct RawConnection {
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
        location: Location,
        timeout: Duration,
        scripts: Vec<&'static Script>,
        reporter: Arc<Reporter>,
    ) -> Self {
        Self {
            location,
            is_asking: false,
            eviction_is_known: AtomicBool::new(false),
            lone_writes_are_known: AtomicBool::new(false),
            unknown_role_is_known: AtomicBool::new(false),
            access,
            timeout,
            scripts,
            release: None,
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

    /// Makes the handshake find out how the locks of this dialect check the owner.
    pub(super) fn for_dialect(mut self, dialect: Dialect) -> Self {
        self.release = match dialect {
            Dialect::SetNxPx { release } if release.asks_server() => Some(release),
            _ => None,
        };
        self
    }

    /// Makes each command of the connections follow an `ASKING`.
    pub(super) fn asking(mut self) -> Self {
        self.is_asking = true;
        self
    }

    /// Returns whether waiters of these connections can get notifications. Keys that are on their way to a node have no
    /// subscription there.
    pub(super) fn can_subscribe(&self) -> bool {
        !self.is_asking && !self.speaks_resp2(&self.node())
    }

    fn speaks_resp2(&self, node: &Node) -> bool {
        match self.access.protocol {
            Some(protocol) => protocol == Protocol::Resp2,
            None => node.speaks_resp2(),
        }
    }

    /// Returns the server of the next connection.
    pub(super) fn node(&self) -> Arc<Node> {
        self.location.node()
    }

    /// Returns the error for a caller whose time ran out before a connection was made.
    pub(super) fn no_answer(&self) -> LockError {
        no_answer_of(&self.node())
    }

    /// Returns the report of a connection to a server.
    pub(super) fn report(&self, node: &Node, kind: ConnectionKind) -> ConnectionReport {
        ConnectionReport {
            reporter: Arc::clone(&self.reporter),
            server: Arc::clone(&node.server),
            kind,
        }
    }

    /// Opens a connection for lock commands, and makes it known: to its server, and to the provider of credentials.
    pub(super) async fn connect(
        self: &Arc<Self>,
        limit: Duration,
    ) -> Result<Arc<Connection>, LockError> {
        let kind = kind_of_this_thread();
        let deadline = Deadline::after(Clock::System, limit.min(self.timeout));
        let opened = self.open(kind, deadline).await?;
        let node = Arc::clone(&opened.node);
        let _turn = self
            .admitted(&node, opened.greeting.first.run_id, deadline)
            .await?;
        let report = self.report(&node, kind);
        let connection = Arc::new(Connection::start(
            opened.stream,
            Link::new(opened.node, report, self.timeout),
            &opened.login,
            opened.greeting,
            self.is_asking,
            opened.issued.and_then(|issued| issued.renew_at),
        ));
        node.registers(&connection);
        if let Some(source) = &self.access.credentials {
            source.register(&connection);
        }
        Ok(connection)
    }

    /// Waits for the decision that a connection to this server process may be used. Other connections wait for as long
    /// as the guard is kept.
    async fn admitted<'n>(
        &self,
        node: &'n Node,
        run_id: u64,
        deadline: Deadline,
    ) -> Result<tokio::sync::MutexGuard<'n, ()>, LockError> {
        let deciding = async {
            let turn = node.admission.lock().await;
            // By its own rule, a connection ends when it is silent for this long.
            let limit = self.timeout / 2;
            node.admits(run_id, limit, &self.reporter).await?;
            Ok(turn)
        };
        let decided = tokio::time::timeout(deadline.left(), deciding).await;
        decided.unwrap_or_else(|_elapsed| Err(no_answer_of(node)))
    }

    /// Opens a connection that receives messages.
    pub(super) async fn connect_raw(
        self: &Arc<Self>,
        limit: Duration,
    ) -> Result<(Stream, RawConnection), LockError> {
        if self.speaks_resp2(&self.node()) {
            return Err(no_notifications());
        }
        let deadline = Deadline::after(Clock::System, limit.min(self.timeout));
        let opened = self.open(ConnectionKind::Pubsub, deadline).await?;
        // The server may have refused RESP3 just now.
        if !opened.protocol.supports_resp3() {
            return Err(no_notifications());
        }
        let run_id = opened.greeting.first.run_id;
        drop(self.admitted(&opened.node, run_id, deadline).await?);
        let raw = RawConnection {
            node: opened.node,
            first: opened.greeting.first,
            issued: opened.issued,
        };
        Ok((opened.stream, raw))
    }

    /// Connects to the server, logs in, and checks the server.
    async fn open(
        self: &Arc<Self>,
        kind: ConnectionKind,
        deadline: Deadline,
    ) -> Result<Opened, LockError> {
        let node = self.node();
        let attempt = self.attempt(&node, kind, Purpose::Use, deadline).await?;
        let opening = async {
            let resolved = resolve(&node.address).await;
            let resolved = resolved.map_err(|error| connect_error(&node.text, &error.into()))?;
            self.location.resolved(&node, &resolved);
            let begun = attempt.at(resolved).await?;
            let run_id = begun.greeting.first.run_id;
            node.saw_process(run_id);
            if begun.protocol.supports_resp3() {
                node.accepted_resp3();
            }
            if let Some(failed) = &begun.refused_resp3 {
                self.speaks_resp2_from_now(&node, run_id, &attempt.login, failed);
            }
            Ok(begun)
        };
        let opened = tokio::time::timeout(deadline.left(), opening).await;
        let opened = opened.unwrap_or_else(|_elapsed| {
            if attempt.is_securing.load(Ordering::Relaxed) {
                let text = format!("the lock server at {} does not answer in TLS", node.text);
                return Err(LockError::advised(
                    BackendErrorKind::TimedOut,
                    format!("{text}: no answer in time"),
                    "does that port speak TLS? Without TLS, use redis:// instead of rediss://",
                ));
            }
            Err(no_answer_of(&node))
        });
        self.location.tried(&node, opened.as_ref().err())?;
        let Begun {
            stream,
            protocol,
            greeting,
            ..
        } = opened?;
        if greeting.is_primary {
            node.epoch_told(&EpochReply {
                asked: greeting.first.sent,
                lead_us: self.access.lead_us(greeting.epoch),
                server_us: greeting.first.server_us,
            });
        }
        Ok(Opened {
            node,
            stream,
            protocol,
            login: attempt.login.clone(),
            issued: attempt.issued.clone(),
            greeting,
        })
    }

    /// Returns the run id of the primary at one of these addresses.
    ///
    /// # Cancel safety
    /// Dropping the future closes what it has opened.
    pub(super) async fn process_at(
        self: &Arc<Self>,
        addresses: Vec<SocketAddr>,
        deadline: Deadline,
    ) -> Result<u64, LockError> {
        let (node, kind) = (self.node(), kind_of_this_thread());
        let attempt = self.attempt(&node, kind, Purpose::Ask, deadline).await?;
        let asked = tokio::time::timeout(deadline.left(), attempt.at(addresses)).await;
        let begun = asked.unwrap_or_else(|_elapsed| Err(no_answer_of(&node)))?;
        Ok(begun.greeting.first.run_id)
    }

    async fn attempt(
        self: &Arc<Self>,
        node: &Arc<Node>,
        kind: ConnectionKind,
        purpose: Purpose,
        deadline: Deadline,
    ) -> Result<Arc<Attempt>, LockError> {
        let (login, issued) = self.access.login(deadline.left()).await?;
        let login = if self.speaks_resp2(node) {
            login.set_protocol(ProtocolVersion::RESP2)
        } else {
            login
        };
        Ok(Arc::new(Attempt {
            connector: Arc::clone(self),
            node: Arc::clone(node),
            login,
            issued,
            kind,
            purpose,
            deadline,
            is_securing: AtomicBool::new(false),
        }))
    }

    /// Records, and reports once, that a server has refused RESP3.
    fn speaks_resp2_from_now(
        &self,
        node: &Node,
        run_id: u64,
        login: &RedisConnectionInfo,
        failed: &LoginError,
    ) {
        if node.found_resp2(run_id, failed.is_of_resp3(login)) {
            self.reporter.emit(&LockEvent::ServerRestricted {
                server: &node.server,
                command: "HELLO",
                effect: "connections speak RESP2, which has no notifications, and waiters poll",
                error: &failed.text(),
            });
        }
    }
}

/// What a connection is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// It is used if it leads to the server of the other connections.
    Use,
    /// To learn to which server it leads.
    Ask,
}

/// One attempt to connect to a server, at any of its addresses.
struct Attempt {
    connector: Arc<Connector>,
    node: Arc<Node>,
    login: RedisConnectionInfo,
    issued: Option<Arc<Issued>>,
    kind: ConnectionKind,
    purpose: Purpose,
    deadline: Deadline,
    /// A handshake of TLS is under way.
    is_securing: AtomicBool,
}

/// A connection after the handshake, before it is used.
struct Begun {
    stream: Stream,
    protocol: ProtocolVersion,
    /// Why this isn't RESP3, if it was tried.
    refused_resp3: Option<LoginError>,
    greeting: Greeting,
}

/// How long one address has before the next one is tried as well. Longer than a handshake in most networks.
const STAGGER: Duration = Duration::from_millis(100);

impl Attempt {
    /// Connects to the first of these addresses that leads to a server which can be used: to a primary, and to that of
    /// the other connections. Without addresses it connects to the node's Unix socket.
    async fn at(self: &Arc<Self>, addresses: Vec<SocketAddr>) -> Result<Begun, LockError> {
        if addresses.len() <= 1 {
            return self.begin(&addresses).await;
        }
        let mut left = addresses.into_iter();
        let mut trying = JoinSet::new();
        let mut failures = Vec::new();
        loop {
            if let Some(address) = left.next() {
                let attempt = Arc::clone(self);
                assert_no_mutex_held();
                trying.spawn(async move { (address, attempt.begin(&[address]).await) });
            }
            let tried = tokio::select! {
                tried = trying.join_next() => tried,
                () = tokio::time::sleep(STAGGER), if left.len() > 0 => continue,
            };
            match tried {
                Some(Ok((_, Ok(begun)))) => return Ok(begun),
                Some(Ok((address, Err(error)))) => failures.push((address, error)),
                // The runtime is shutting down.
                Some(Err(_)) => return Err(LockError::NoRuntime),
                None => return Err(self.no_address(failures)),
            }
        }
    }

    async fn begin(&self, address: &[SocketAddr]) -> Result<Begun, LockError> {
        let (connector, node) = (&*self.connector, &*self.node);
        let access = &connector.access;
        let dial = || async {
            let (tls, keepalive) = (access.tls.as_ref(), keepalive());
            let dialing = dial(&node.address, address, tls, &keepalive, &self.is_securing);
            let dialed = dialing.await?;
            dialed.map_err(|error| connect_error(&node.text, &error))
        };
        let fallback = match access.protocol {
            Some(_) => Fallback::Never,
            None if node.knows_resp3() => Fallback::AfterRefusal,
            None => Fallback::AfterRefusalOrEnd,
        };
        let logged_in = dial_and_log_in(dial, &self.login, fallback).await?;
        let LoggedIn {
            mut stream,
            protocol,
            refused_resp3,
        } = logged_in.map_err(|failed| connector.setup_error(node, &self.login, &failed))?;
        let greeting = connector
            .handshake(node, &mut stream, protocol, self.kind)
            .await?;
        if self.purpose == Purpose::Use {
            let (run_id, limit) = (greeting.first.run_id, self.deadline.left() / 2);
            node.admits(run_id, limit, &connector.reporter).await?;
        }
        Ok(Begun {
            stream,
            protocol,
            refused_resp3,
            greeting,
        })
    }

    /// Returns the error of a name without a usable address: what each of them said, unless all said the same.
    fn no_address(&self, mut failures: Vec<(SocketAddr, LockError)>) -> LockError {
        let text = |error: &LockError| match error {
            LockError::Backend(error) => error.context().to_owned(),
            error => error.to_string(),
        };
        let texts: BTreeSet<_> = failures.iter().map(|(_, error)| text(error)).collect();
        let each: Vec<_> = failures
            .iter()
            .map(|(address, error)| format!("{}: {}", address.ip(), text(error)))
            .collect();
        // As long as one of them may cure itself, so may the name. A server that replies says more than one that doesn't.
        failures.sort_by_key(|(_, error)| (!error.is_retryable(), error.is_unreachable()));
        match failures.into_iter().next() {
            Some((_, LockError::Backend(error))) if texts.len() > 1 => {
                LockError::Backend(error.of_several(format!(
                    "no address of the lock server at {} can be used ({})",
                    self.node.text,
                    each.join("; ")
                )))
            }
            Some((_, error)) => error,
            None => no_answer_of(&self.node),
        }
    }
}

fn no_notifications() -> LockError {
    LockError::advised(
        BackendErrorKind::Unsupported,
        "connections in RESP2 get no notifications",
        "waiters poll; for notifications, use a server with RESP3 and no `protocol=2`",
    )
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
