//! Where the server of the next connection is, and how a manager notices that another server is the primary.
//!
//! Each such change begins a generation. Connections of an earlier one are retired, all leases are renewed at the new
//! primary at once, and waiters ask there: see `RedisStore::follow`.
//!
//! # Names
//!
//! A name may move to another server while the old one keeps running. The open connections would stay at the old server,
//! so its locks would stay held there, while clients that resolve the name later get the same locks from the new server.
//!
//! | The resolver says | Whoever answers there | Then |
//! |---|---|---|
//! | nothing, or the addresses of all open connections | | nothing happens |
//! | other addresses | the same server process | nothing happens: the addresses take turns |
//! | other addresses | another primary | a new generation begins |
//! | other addresses | nobody, or a replica | the connections stay; look again after [`AGAIN`] |
//!
//! The resolver is asked in each interval and at each attempt to connect. While no connection is open, the address of the
//! last one stands in for theirs.
//!
//! A new connection may also lead to another server at another address than the last one, although the resolver still
//! names both, or nobody has asked it since. Once the former server no longer serves, a new generation begins before the
//! connection is used ([`Location::has_moved`]). Another process at the *same* address is a restart, which the next renewals
//! judge.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::deployment::NodeAddress;
use super::dial::resolve;
use super::node::Node;
use super::sentinel::SentinelWatch;
use crate::error::LockError;
use crate::sync::Mutex;
use crate::telemetry::{LockEvent, Reporter};
use lock_protocol::clock::{Clock, Deadline};

/// The pause before the resolver is asked again, while the name leads to no primary.
const AGAIN: Duration = Duration::from_secs(1);

/// Where the server of the next connection is.
#[derive(Clone)]
pub(super) enum Location {
    /// At this address, or the map of a cluster says where.
    Fixed(Arc<Node>),
    /// At the addresses of a name.
    Name(Arc<NamedServer>),
    /// Where the Sentinels say. Before they have said it, the node stands in for the server.
    Sentinels(Arc<SentinelWatch>, Arc<Node>),
}

/// A server that is known by name.
pub(super) struct NamedServer {
    node: Mutex<Arc<Node>>,
    interval: Duration,
    /// The generation of the node.
    changed: watch::Sender<u64>,
    /// Notified when an attempt to connect finds that an open connection's address is no longer among the answers.
    doubted: Notify,
    reporter: Arc<Reporter>,
}

impl Location {
    /// A server at this address. A name is resolved again in each interval, unless that is zero.
    pub(super) fn of(address: &NodeAddress, interval: Duration, reporter: &Arc<Reporter>) -> Self {
        let node = Arc::new(Node::new(address.clone()));
        let is_name = matches!(address, NodeAddress::Tcp(host, _)
            if host.parse::<std::net::IpAddr>().is_err());
        if !is_name || interval.is_zero() {
            return Self::Fixed(node);
        }
        Self::Name(Arc::new(NamedServer {
            node: Mutex::new(node),
            interval,
            changed: watch::Sender::new(0),
            doubted: Notify::new(),
            reporter: Arc::clone(reporter),
        }))
    }

    pub(super) fn sentinels(watch: SentinelWatch) -> Self {
        let first = watch.node().unwrap_or_else(|| watch.stand_in());
        Self::Sentinels(Arc::new(watch), first)
    }

    /// Finds out where the server is, unless that is known.
    pub(super) async fn known(&self, deadline: Deadline) -> Result<(), LockError> {
        match self {
            Self::Sentinels(watch, _) if watch.node().is_none() => {
                watch.discover(deadline.left()).await
            }
            _ => Ok(()),
        }
    }

    /// Returns the error of a caller that waited for Sentinels in vain; `None` if the server is known.
    pub(super) fn unknown(&self) -> Option<LockError> {
        let watch = self.watch().filter(|watch| watch.node().is_none())?;
        Some(watch.unknown_primary())
    }

    pub(super) fn node(&self) -> Arc<Node> {
        match self {
            Self::Fixed(node) => Arc::clone(node),
            Self::Name(named) => named.node(),
            Self::Sentinels(watch, first) => watch.node().unwrap_or_else(|| Arc::clone(first)),
        }
    }

    pub(super) fn watch(&self) -> Option<&Arc<SentinelWatch>> {
        match self {
            Self::Fixed(_) | Self::Name(_) => None,
            Self::Sentinels(watch, _) => Some(watch),
        }
    }

    /// Returns the generations of the server, if it may change.
    pub(super) fn generations(&self) -> Option<watch::Receiver<u64>> {
        match self {
            Self::Fixed(_) => None,
            Self::Name(named) => Some(named.changed.subscribe()),
            Self::Sentinels(watch, _) => Some(watch.generations()),
        }
    }

    /// Returns the generation of the server to use now.
    pub(super) fn generation(&self) -> u64 {
        match self {
            Self::Fixed(_) => 0,
            Self::Name(named) => *named.changed.borrow(),
            Self::Sentinels(..) => self.node().generation,
        }
    }

    /// Records where the server is, as the resolver says at an attempt to connect. Returns whether that contradicts the
    /// open connections.
    pub(super) fn resolved(&self, node: &Node, addresses: &[SocketAddr]) -> bool {
        let Self::Name(named) = self else {
            return false;
        };
        let has_left = has_left(&node.peers(), addresses);
        if has_left {
            named.reporter.waking(|| named.doubted.notify_one());
        }
        has_left
    }

    /// Returns whether a new connection that may be used leads to another server than the last one, at another address.
    /// Then a [generation begins](Self::begin_generation), to which the next connection belongs.
    pub(super) fn has_moved(&self, node: &Node, run_id: u64, peer: Option<IpAddr>) -> bool {
        matches!(self, Self::Name(_)) && node.is_elsewhere(run_id, peer)
    }

    /// Uses the server to which the name leads after this one, unless that was noticed before.
    pub(super) fn begin_generation(&self, before: &Arc<Node>) {
        if let Self::Name(named) = self {
            named.begin_generation(before);
        }
    }

    /// Records the outcome of an attempt to connect. Returns an error if the connection must not be used.
    pub(super) fn tried(&self, node: &Node, error: Option<&LockError>) -> Result<(), LockError> {
        match self {
            Self::Fixed(_) | Self::Name(_) => Ok(()),
            Self::Sentinels(watch, _) => watch.tried(node, error),
        }
    }

    /// Looks for another primary for as long as it is polled. `process_at` connects to one of the addresses, within the
    /// limit, and returns the run id of the primary there.
    pub(super) async fn follow<A>(
        &self,
        limit: Duration,
        process_at: impl Fn(Vec<SocketAddr>, Deadline) -> A,
    ) where
        A: Future<Output = Result<u64, LockError>>,
    {
        match self {
            Self::Fixed(_) => {}
            Self::Name(named) => named.follow(limit, process_at).await,
            Self::Sentinels(watch, _) => Arc::clone(watch).watch().await,
        }
    }
}

/// Returns whether a connection that leads here leads to none of these addresses.
fn has_left(peers: &[IpAddr], addresses: &[SocketAddr]) -> bool {
    let is_there = |peer| addresses.iter().any(|address| address.ip() == peer);
    !peers.iter().copied().all(is_there)
}

/// What the addresses of a name lead to.
enum Found {
    /// The open connections are there, or the same server process is.
    Same,
    Another,
    /// Nobody knows: no primary answers there.
    Nothing,
}

impl NamedServer {
    fn node(&self) -> Arc<Node> {
        Arc::clone(&self.node.lock())
    }

    async fn follow<A>(&self, limit: Duration, process_at: impl Fn(Vec<SocketAddr>, Deadline) -> A)
    where
        A: Future<Output = Result<u64, LockError>>,
    {
        let mut pause = self.interval;
        loop {
            tokio::select! {
                () = self.doubted.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
            let node = self.node();
            let deadline = Deadline::after(Clock::System, limit);
            pause = match look(&node, deadline, &process_at).await {
                Found::Same => self.interval,
                Found::Another => {
                    self.begin_generation(&node);
                    self.interval
                }
                Found::Nothing => AGAIN.min(self.interval),
            };
        }
    }

    fn begin_generation(&self, before: &Arc<Node>) {
        let node = Arc::new(before.moved());
        let replaced = {
            let mut current = self.node.lock();
            if !Arc::ptr_eq(&current, before) {
                return;
            }
            std::mem::replace(&mut *current, Arc::clone(&node))
        };
        drop(replaced);
        // At once: connections are compared with both.
        self.reporter.waking(|| {
            self.changed
                .send_modify(|current| *current = node.generation.max(*current));
        });
        self.reporter.emit(&LockEvent::PrimaryChanged {
            server: &node.server,
            epoch: node.epoch,
            is_reset: false,
        });
    }
}

/// Resolves the name, and asks whoever answers there if that is news.
async fn look<A>(
    node: &Node,
    deadline: Deadline,
    process_at: impl Fn(Vec<SocketAddr>, Deadline) -> A,
) -> Found
where
    A: Future<Output = Result<u64, LockError>>,
{
    let resolving = tokio::time::timeout(deadline.left(), resolve(&node.address));
    let Ok(Ok(addresses)) = resolving.await else {
        // That the name can't be resolved says nothing about the server.
        return Found::Same;
    };
    let mut peers = node.peers();
    if peers.is_empty() {
        peers.extend(node.last_peer());
    }
    if !has_left(&peers, &addresses) {
        return Found::Same;
    }
    match process_at(addresses, deadline).await {
        Ok(run_id) if node.is_known_process(run_id) => Found::Same,
        Ok(_) => Found::Another,
        Err(_) => Found::Nothing,
    }
}
