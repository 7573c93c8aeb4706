//! Opens connections: dials, logs in, and checks the server.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{ProtocolVersion, RedisConnectionInfo};
use tokio::task::JoinSet;

use super::connection::Connection;
use super::credentials::Issued;
use super::deployment::{NodeAddress, Protocol};
use super::dial::{MAX_ADDRESSES, Stream, dial, resolve, stagger};
use super::errors::{connect_error, not_the_primary, of_each, timed_out};
use super::handshake::{Greeting, Handshake};
use super::link::Link;
use super::location::Location;
use super::login::{Fallback, LoggedIn, LoginError, dial_and_log_in};
use super::node::{EpochReply, Node};
use super::node_config::NodeConfig;
use super::report::{ConnectionReport, kind_of_this_thread};
use crate::error::{BackendErrorKind, LockError};
use crate::store::PollingReason;
use crate::sync::assert_no_mutex_held;
use crate::telemetry::{ConnectionKind, LockEvent};
use lock_protocol::clock::{Clock, Deadline};
use lock_protocol::dialect::Dialect;
use lock_protocol::scripts::Script;

/// Whether the slots of the keys belong to the node, or are on their way to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slots {
    Settled,
    /// Each command follows an `ASKING`.
    #[cfg(feature = "cluster")]
    Arriving,
}

/// Opens connections.
pub(super) struct Connector {
    pub(super) config: Arc<NodeConfig>,
    pub(super) location: Location,
    pub(super) handshake: Handshake,
    slots: Slots,
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

impl Connector {
    /// Creates a connector. Its connections load these scripts before the first command.
    pub(super) fn new(
        config: Arc<NodeConfig>,
        location: Location,
        slots: Slots,
        scripts: Vec<&'static Script>,
    ) -> Self {
        Self {
            handshake: Handshake::new(Arc::clone(&config), scripts),
            config,
            location,
            slots,
        }
    }

    /// Makes the handshake find out how the locks of this dialect check the owner.
    pub(super) fn for_dialect(mut self, dialect: Dialect) -> Self {
        self.handshake.release = match dialect {
            Dialect::SetNxPx { release } if release.asks_server() => Some(release),
            _ => None,
        };
        self
    }

    /// Returns whether waiters of these connections can get notifications. Keys that are on their way to a node have no
    /// subscription there.
    pub(super) fn can_subscribe(&self) -> bool {
        !self.is_asking() && !self.speaks_resp2(&self.node())
    }

    fn is_asking(&self) -> bool {
        self.slots != Slots::Settled
    }

    /// Returns why no connection to the server gets notifications, if that is known.
    pub(super) fn polling(&self) -> Option<PollingReason> {
        if self.config.protocol == Some(Protocol::Resp2) {
            Some(PollingReason::ProtocolOfUrl)
        } else if self.speaks_resp2(&self.node()) {
            Some(PollingReason::NoResp3)
        } else {
            self.handshake.polling()
        }
    }

    fn speaks_resp2(&self, node: &Node) -> bool {
        match self.config.protocol {
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
        self.location
            .unknown()
            .unwrap_or_else(|| no_answer_of(&self.node()))
    }

    /// Returns the report of a connection to a server.
    pub(super) fn report(&self, node: &Node, kind: ConnectionKind) -> ConnectionReport {
        ConnectionReport {
            reporter: Arc::clone(&self.config.reporter),
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
        let deadline = Deadline::after(Clock::System, limit.min(self.config.timeout()));
        let opened = self.open(kind, deadline).await?;
        let node = Arc::clone(&opened.node);
        let _turn = self.admitted(&opened, &node, deadline).await?;
        self.config.reached(opened.greeting.clock_difference)?;
        let report = self.report(&node, kind);
        let connection = Arc::new(Connection::start(
            opened.stream,
            Link::new(opened.node, report, self.config.timeout()),
            &opened.login,
            opened.greeting,
            self.is_asking(),
            opened.protocol.supports_resp3(),
            opened.issued.and_then(|issued| issued.renew_at),
        ));
        let weak = Arc::downgrade(&connection);
        node.registers(weak.clone());
        if let Some(source) = &self.config.credentials {
            source.register(weak);
        }
        Ok(connection)
    }

    /// Waits for the decision that a connection to this server process may be used. Other connections wait for as long
    /// as the guard is kept.
    async fn admitted<'n>(
        &self,
        opened: &Opened,
        node: &'n Arc<Node>,
        deadline: Deadline,
    ) -> Result<tokio::sync::MutexGuard<'n, ()>, LockError> {
        let (run_id, peer) = (opened.greeting.first.run_id, opened.stream.peer());
        let deciding = async {
            let turn = node.admission.lock().await;
            // By its own rule, a connection ends when it is silent for this long.
            let limit = self.config.timeout() / 2;
            node.may_admit(run_id, limit, Some(&self.config.reporter))
                .await?;
            if self.location.has_moved(node, run_id, peer) {
                drop(turn);
                self.location.begin_generation(node);
                return Err(not_the_primary(&node.text()));
            }
            node.uses(run_id, peer);
            Ok(turn)
        };
        let decided = tokio::time::timeout(deadline.left(), deciding).await;
        decided.unwrap_or_else(|_elapsed| Err(no_answer_of(node)))
    }

    /// Connects to the server, logs in, and checks the server.
    async fn open(
        self: &Arc<Self>,
        kind: ConnectionKind,
        deadline: Deadline,
    ) -> Result<Opened, LockError> {
        self.location.known(deadline).await?;
        let node = self.node();
        let (login, issued) = self.login(&node, deadline).await?;
        let opened = self.begin(&node, &login, kind, deadline).await;
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
                lead_us: self.config.lead_us(greeting.epoch),
                server_us: greeting.first.server_us,
            });
        }
        Ok(Opened {
            node,
            stream,
            protocol,
            login,
            issued,
            greeting,
        })
    }

    /// Finds out where the node is, connects, and records what the node has shown.
    async fn begin(
        self: &Arc<Self>,
        node: &Arc<Node>,
        login: &RedisConnectionInfo,
        kind: ConnectionKind,
        deadline: Deadline,
    ) -> Result<Begun, LockError> {
        let (address, resolved) = self.resolve(node, deadline).await?;
        let purpose = if self.location.resolved(node, &resolved) {
            Purpose::UseOfMoved
        } else {
            Purpose::Use
        };
        let attempt = self.attempt(node, address, login.clone(), kind, purpose, deadline);
        let begun = attempt.at(resolved).await;
        let begun = begun.map_err(|error| node.explained(error))?;
        let run_id = begun.greeting.first.run_id;
        node.saw_process(run_id);
        if begun.protocol.supports_resp3() {
            node.accepted_resp3();
        }
        if let Some(failed) = &begun.refused_resp3 {
            self.speaks_resp2_from_now(node, run_id, login, failed);
        }
        Ok(begun)
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
        let (login, _issued) = self.login(&node, deadline).await?;
        let address = node.address.clone();
        let attempt = self.attempt(&node, address, login, kind, Purpose::Ask, deadline);
        Ok(attempt.at(addresses).await?.greeting.first.run_id)
    }

    /// Connects and logs in, without a look at the server.
    ///
    /// # Cancel safety
    /// Dropping the future closes what it has opened.
    #[cfg(feature = "__doctor")]
    pub(super) async fn log_in(self: &Arc<Self>, limit: Duration) -> Result<LoggedIn, LockError> {
        let (node, deadline) = (self.node(), Deadline::after(Clock::System, limit));
        let (login, _issued) = self.login(&node, deadline).await?;
        let (address, resolved) = self.resolve(&node, deadline).await?;
        let kind = kind_of_this_thread();
        let attempt = self.attempt(&node, address, login, kind, Purpose::Ask, deadline);
        let is_securing = AtomicBool::new(false);
        let logging_in = attempt.log_in(&resolved, &is_securing);
        let logged_in = attempt.in_time(&is_securing, logging_in).await;
        logged_in.map_err(|error| node.explained(error))
    }

    /// Returns the address at which this client reaches the node, and what the name stands for.
    async fn resolve(
        &self,
        node: &Node,
        deadline: Deadline,
    ) -> Result<(NodeAddress, Vec<SocketAddr>), LockError> {
        let address = self.config.reach(node)?;
        let resolving = tokio::time::timeout(deadline.left(), resolve(&address));
        let resolved = resolving
            .await
            .unwrap_or_else(|_elapsed| Err(io::ErrorKind::TimedOut.into()))
            .map_err(|error| node.explained(connect_error(&node.text(), &error.into())))?;
        Ok((address, resolved))
    }

    async fn login(
        &self,
        node: &Node,
        deadline: Deadline,
    ) -> Result<(RedisConnectionInfo, Option<Arc<Issued>>), LockError> {
        let (login, issued) = self.config.login(deadline.left()).await?;
        if self.speaks_resp2(node) {
            return Ok((login.set_protocol(ProtocolVersion::RESP2), issued));
        }
        Ok((login, issued))
    }

    fn attempt(
        self: &Arc<Self>,
        node: &Arc<Node>,
        address: NodeAddress,
        login: RedisConnectionInfo,
        kind: ConnectionKind,
        purpose: Purpose,
        deadline: Deadline,
    ) -> Arc<Attempt> {
        Arc::new(Attempt {
            connector: Arc::clone(self),
            node: Arc::clone(node),
            address,
            login,
            kind,
            purpose,
            deadline,
        })
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
            self.config.reporter.emit(&LockEvent::ServerRestricted {
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
    /// To use it if it leads to the same server as the other connections.
    Use,
    /// The same while the resolver no longer names the address of one of them, so that another server isn't a surprise.
    UseOfMoved,
    /// To learn which server is there.
    Ask,
}

/// One attempt to connect to a server, at any of its addresses.
struct Attempt {
    connector: Arc<Connector>,
    node: Arc<Node>,
    address: NodeAddress,
    login: RedisConnectionInfo,
    kind: ConnectionKind,
    purpose: Purpose,
    deadline: Deadline,
}

/// A connection after the handshake, before it is used.
struct Begun {
    stream: Stream,
    protocol: ProtocolVersion,
    /// Why this isn't RESP3, if it was tried.
    refused_resp3: Option<LoginError>,
    greeting: Greeting,
}

/// How long one address has at most before the next one is tried as well. Longer than a handshake in most networks.
const STAGGER: Duration = Duration::from_millis(100);

impl Attempt {
    /// Connects to the first of these addresses with a usable server: a primary, and the server to which the other
    /// connections lead. Without addresses it connects to the node's Unix socket.
    async fn at(self: &Arc<Self>, addresses: Vec<SocketAddr>) -> Result<Begun, LockError> {
        if addresses.len() <= 1 {
            return self.begin(&addresses).await;
        }
        let mut left = addresses.into_iter().take(MAX_ADDRESSES);
        let mut trying = JoinSet::new();
        let mut failures = Vec::new();
        loop {
            if let Some(address) = left.next() {
                let attempt = Arc::clone(self);
                assert_no_mutex_held();
                trying.spawn(async move { (address, attempt.begin(&[address]).await) });
            }
            let stagger = stagger(STAGGER, left.len(), self.deadline);
            let tried = tokio::select! {
                tried = trying.join_next() => tried,
                () = tokio::time::sleep(stagger), if left.len() > 0 => continue,
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

    /// Connects, logs in and checks the server, until the deadline.
    async fn begin(&self, address: &[SocketAddr]) -> Result<Begun, LockError> {
        let is_securing = AtomicBool::new(false);
        let beginning = self.begin_unlimited(address, &is_securing);
        self.in_time(&is_securing, beginning).await
    }

    /// Ends the work at the deadline.
    async fn in_time<T>(
        &self,
        is_securing: &AtomicBool,
        work: impl Future<Output = Result<T, LockError>>,
    ) -> Result<T, LockError> {
        let done = tokio::time::timeout(self.deadline.left(), work).await;
        done.unwrap_or_else(|_elapsed| {
            if !is_securing.load(Ordering::Relaxed) {
                return Err(no_answer_of(&self.node));
            }
            let address = self.node.text();
            Err(LockError::advised(
                BackendErrorKind::TimedOut,
                format!("the lock server at {address} does not answer in TLS: no answer in time"),
                "does that port speak TLS? Without TLS, use redis:// instead of rediss://",
            ))
        })
    }

    async fn log_in(
        &self,
        address: &[SocketAddr],
        is_securing: &AtomicBool,
    ) -> Result<LoggedIn, LockError> {
        let (connector, node) = (&*self.connector, &*self.node);
        let config = &connector.config;
        let dial = || async {
            let tls = config.tls.as_ref();
            let dialed = dial(&self.address, address, tls, is_securing).await?;
            dialed.map_err(|error| connect_error(&node.text(), &error))
        };
        let fallback = match config.protocol {
            Some(_) => Fallback::Never,
            None if node.knows_resp3() => Fallback::AfterRefusal,
            None => Fallback::AfterRefusalOrEnd,
        };
        let logged_in = dial_and_log_in(dial, &self.login, fallback).await?;
        logged_in.map_err(|failed| connector.handshake.setup_error(node, &self.login, &failed))
    }

    async fn begin_unlimited(
        &self,
        address: &[SocketAddr],
        is_securing: &AtomicBool,
    ) -> Result<Begun, LockError> {
        let (connector, node) = (&*self.connector, &*self.node);
        let LoggedIn {
            mut stream,
            protocol,
            hello,
            refused_resp3,
        } = self.log_in(address, is_securing).await?;
        let greeting = connector
            .handshake
            .run(node, &mut stream, hello, self.kind)
            .await?;
        if self.purpose != Purpose::Ask {
            let (run_id, limit) = (greeting.first.run_id, self.deadline.left() / 2);
            let reporter = (self.purpose == Purpose::Use).then_some(&*connector.config.reporter);
            node.may_admit(run_id, limit, reporter).await?;
        }
        Ok(Begun {
            stream,
            protocol,
            refused_resp3,
            greeting,
        })
    }

    /// Returns the error for a name whose addresses have all failed.
    fn no_address(&self, failures: Vec<(SocketAddr, LockError)>) -> LockError {
        let context = format!(
            "no address of the lock server at {} can be used",
            self.node.text()
        );
        let labeled = |(address, error): (SocketAddr, _)| (format!("{}: ", address.ip()), error);
        of_each(context, failures.into_iter().map(labeled).collect())
            .unwrap_or_else(|| no_answer_of(&self.node))
    }
}

pub(super) fn no_notifications() -> LockError {
    LockError::advised(
        BackendErrorKind::Unsupported,
        "connections in RESP2 get no notifications",
        "waiters poll; for notifications, use a server with RESP3 and no `protocol=2`",
    )
}

fn no_answer_of(node: &Node) -> LockError {
    node.explained(timed_out(&format!(
        "cannot connect to the lock server at {}",
        node.text()
    )))
}
