//! One server of a deployment, and where a connector finds the server of its next connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::watch;

use super::place::NodeAddress;
use super::sentinel::SentinelWatch;
use crate::error::LockError;
use crate::telemetry::ServerAddress;

/// One server, as connections see it.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) address: NodeAddress,
    /// The address, for error texts.
    pub(super) text: Arc<str>,
    /// The address, for telemetry.
    pub(super) server: Arc<ServerAddress>,
    /// Grows when the Sentinels name another primary. Connections of an earlier generation are not used.
    pub(super) generation: u64,
    /// The configuration epoch of the Sentinels; 0 without Sentinels.
    pub(super) epoch: u64,
    /// How far a fencing token lies ahead of the server's clock at least, in microseconds. Grows with the
    /// epoch that the server itself tells.
    lead_us: AtomicU64,
}

impl Node {
    pub(super) fn new(address: NodeAddress) -> Self {
        Self {
            text: address.to_string().into(),
            server: Arc::new(server_address(&address)),
            address,
            generation: 0,
            epoch: 0,
            lead_us: AtomicU64::new(0),
        }
    }

    /// The primary that the Sentinels name.
    pub(super) fn announced(address: NodeAddress, generation: u64, epoch: u64) -> Self {
        Self {
            generation,
            epoch,
            ..Self::new(address)
        }
    }

    /// Returns how far the seed of a counter lies ahead of the server's time.
    pub(super) fn lead_us(&self) -> u64 {
        self.lead_us.load(Ordering::Relaxed)
    }

    /// Raises the lead. It never falls while this process knows the server.
    pub(super) fn raise_lead(&self, lead_us: u64) {
        self.lead_us.fetch_max(lead_us, Ordering::Relaxed);
    }
}

/// Returns the address for labels.
fn server_address(address: &NodeAddress) -> ServerAddress {
    match address {
        NodeAddress::Tcp(host, port) => ServerAddress::new(host.as_str(), Some(*port)),
        NodeAddress::Unix(_) => ServerAddress::new(address.to_string(), None),
    }
}

/// Where the server of the next connection is.
#[derive(Clone)]
pub(super) enum Whereabouts {
    Fixed(Arc<Node>),
    /// The primary that the Sentinels name, or else the last one that they named.
    Sentinel(Arc<SentinelWatch>, Arc<Node>),
}

impl Whereabouts {
    pub(super) fn node(&self) -> Arc<Node> {
        match self {
            Self::Fixed(node) => Arc::clone(node),
            Self::Sentinel(watch, first) => watch.node().unwrap_or_else(|| Arc::clone(first)),
        }
    }

    pub(super) fn sentinel(watch: SentinelWatch) -> Result<Self, LockError> {
        let first = watch.node().ok_or_else(|| watch.unknown_primary())?;
        Ok(Self::Sentinel(Arc::new(watch), first))
    }

    pub(super) fn watch(&self) -> Option<&Arc<SentinelWatch>> {
        match self {
            Self::Fixed(_) => None,
            Self::Sentinel(watch, _) => Some(watch),
        }
    }

    /// Returns the generations of the server, if it may change.
    pub(super) fn generations(&self) -> Option<watch::Receiver<u64>> {
        self.watch().map(|watch| watch.generations())
    }

    /// Returns the generation of the server to use now.
    pub(super) fn generation(&self) -> u64 {
        match self {
            Self::Fixed(_) => 0,
            Self::Sentinel(..) => self.node().generation,
        }
    }

    /// Records the outcome of an attempt to connect.
    pub(super) fn tried(&self, node: &Node, error: Option<&LockError>) {
        if let Self::Sentinel(watch, _) = self {
            let is_usable = error.is_none_or(|error| !error.is_retryable());
            watch.reached(node, is_usable);
        }
    }
}
