//! The known nodes of a cluster, and the slots that they own.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};

use super::super::connector::Slots;
use super::super::credentials;
use super::super::deployment::NodeAddress;
use super::super::listening;
use super::super::location::Location;
use super::super::membership::{Membership, Shared};
use super::super::node::Node;
use super::super::node_config::NodeConfig;
use super::super::single::RedisStore;
use super::names::NodeNames;
use crate::error::{BackendErrorKind, LockError};
use crate::store::StoreTraits;
use crate::sync::Mutex;
use crate::telemetry::Reporter;
use lock_protocol::clock::{Clock, Deadline, Moment};
use lock_protocol::key::LockKey;
use lock_protocol::redirect::Destination;
use lock_protocol::route::{ClusterView, HashSlot, slot_of};

/// One node: the server itself, and the same server for keys that are on their way to it.
pub(in crate::redis) struct ClusterNode {
    pub(super) address: NodeAddress,
    pub(super) server: RedisStore,
    /// Its commands follow an `ASKING`.
    pub(super) asking: RedisStore,
    /// Held by the call that asks for the epoch.
    pub(super) epoch_reading: tokio::sync::Mutex<()>,
}

impl ClusterNode {
    /// Returns what is known of the server.
    pub(super) fn server_node(&self) -> Arc<Node> {
        self.server.client.pool.connector.node()
    }
}

/// The nodes of a cluster.
pub(in crate::redis) struct ClusterNodes {
    config: Arc<NodeConfig>,
    /// The nodes of the URL. They are kept for ever: the cluster may have moved away from all others.
    seeds: Vec<NodeAddress>,
    pub(super) membership: Arc<Membership>,
    state: Mutex<KnownNodes>,
    /// Reads the slot map again.
    pub(super) wanted: Notify,
    /// A node became known, or was forgotten.
    pub(super) changed: Notify,
    /// A call came after a long time without any.
    pub(super) used: Notify,
    /// When the last call came that may give out a token, in nanoseconds of the system's clock.
    last_use: AtomicU64,
    /// Held by the call that reads the first map.
    pub(super) map_reading: tokio::sync::Mutex<()>,
    /// Held by the call that asks for the names of the nodes.
    pub(super) names_reading: tokio::sync::Mutex<()>,
    pub(super) reporter: Arc<Reporter>,
}

/// For how long after a call the epochs of the nodes are kept up to date.
const IN_USE: Duration = Duration::from_secs(10);

/// How many nodes a cluster may have, with those that only a redirection has named. Redis advises against more.
pub(in crate::redis) const MAX_NODES: usize = 1_000;

/// What a node has told of the cluster.
pub(super) struct Told {
    pub(super) view: ClusterView<NodeAddress>,
    /// Empty without TLS.
    pub(super) names: NodeNames,
    /// The ids of the nodes in the map; empty if they say nothing about the servers.
    pub(super) ids: HashSet<String>,
    /// The id of the node itself is in the map in use.
    pub(super) is_by_member: bool,
}

/// What is done with it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    Use,
    /// Use it if no node knows more.
    AskOthers(Shared),
    /// The node has missed a change.
    Older,
    /// The node doesn't belong to the cluster.
    Foreign,
}

struct KnownNodes {
    nodes: HashMap<NodeAddress, Arc<ClusterNode>>,
    view: ClusterView<NodeAddress>,
    /// Empty without TLS.
    names: NodeNames,
}

impl ClusterNodes {
    pub(in crate::redis) fn new(config: Arc<NodeConfig>, seeds: Vec<NodeAddress>) -> Self {
        Self {
            reporter: Arc::clone(&config.reporter),
            config,
            membership: Arc::new(Membership::new(seeds.clone())),
            seeds,
            state: Mutex::new(KnownNodes {
                nodes: HashMap::new(),
                view: ClusterView::default(),
                names: NodeNames::default(),
            }),
            wanted: Notify::new(),
            changed: Notify::new(),
            used: Notify::new(),
            last_use: AtomicU64::new(0),
            map_reading: tokio::sync::Mutex::new(()),
            names_reading: tokio::sync::Mutex::new(()),
        }
    }

    pub(super) fn slot(key: &LockKey) -> HashSlot {
        slot_of(key.as_str().as_bytes())
    }

    /// Returns the node at an address, and makes it if it is unknown.
    pub(super) fn node(&self, address: &NodeAddress) -> Arc<ClusterNode> {
        let aliases = {
            let state = self.state.lock();
            if let Some(known) = state.nodes.get(address) {
                return Arc::clone(known);
            }
            state.names.aliases_of(address)
        };
        let node = Node::in_cluster(address.clone(), aliases, &self.membership);
        // Shared, so that what is known of the server is known, and reported, once.
        let location = Location::Fixed(Arc::new(node));
        let store = |slots| RedisStore::new(&self.config, &location, slots);
        let made = Arc::new(ClusterNode {
            address: address.clone(),
            server: store(Slots::Settled),
            asking: store(Slots::Arriving),
            epoch_reading: tokio::sync::Mutex::new(()),
        });
        let known = {
            let mut state = self.state.lock();
            let known = state.nodes.entry(address.clone());
            Arc::clone(known.or_insert_with(|| Arc::clone(&made)))
        };
        self.reporter.waking(|| self.changed.notify_one());
        known
    }

    /// Returns whether a node may be added that a redirection names.
    pub(super) fn has_room_for(&self, address: &NodeAddress) -> bool {
        let nodes = &self.state.lock().nodes;
        nodes.len() < MAX_NODES || nodes.contains_key(address)
    }

    /// Returns the owner of a slot.
    pub(super) fn owner(&self, slot: HashSlot) -> Result<Arc<ClusterNode>, LockError> {
        let owner = self.state.lock().view.map.owner(slot).cloned();
        match owner {
            Some(address) => Ok(self.node(&address)),
            None => Err(LockError::backend(
                BackendErrorKind::ClusterDown,
                "no node of the cluster serves the slot of the lock",
            )),
        }
    }

    /// Returns the address that a reply names. An empty host is that of the node which replied.
    pub(super) fn address_of(at: &NodeAddress, destination: &Destination) -> NodeAddress {
        let host = match (destination.host.as_str(), at) {
            ("" | "?", NodeAddress::Tcp(host, _)) => host.clone(),
            (host, _) => host.to_owned(),
        };
        NodeAddress::Tcp(host, destination.port)
    }

    /// Returns the address with the name of the node, if a reply has it.
    pub(super) fn name_of(&self, address: &NodeAddress) -> Option<NodeAddress> {
        self.state.lock().names.name_of(address).cloned()
    }

    /// Records the names of nodes, in addition to those of the slot map.
    pub(super) fn add_names(&self, names: NodeNames) {
        self.state.lock().names.extend(names);
    }

    /// Records the owner of one slot, as a node has told it.
    pub(super) fn set_owner(&self, slot: HashSlot, owner: NodeAddress) {
        self.node(&owner).server_node().doubt_epoch();
        self.state.lock().view.map.set(slot, owner);
        self.want_refresh();
    }

    /// Records a call that may give out a token.
    pub(super) fn use_now(&self) {
        let was_in_use = self.is_in_use();
        let now = Clock::System.now().as_nanos();
        self.last_use.store(now, Ordering::Relaxed);
        if !was_in_use {
            self.reporter.waking(|| self.used.notify_one());
        }
    }

    /// Returns whether a call came not long ago.
    pub(super) fn is_in_use(&self) -> bool {
        let last = Moment::from_nanos(self.last_use.load(Ordering::Relaxed));
        Clock::System.now().since(last) < IN_USE
    }

    /// Reads the slot map soon.
    pub(super) fn want_refresh(&self) {
        self.reporter.waking(|| self.wanted.notify_one());
    }

    /// Decides whether what a node has told is used.
    pub(super) fn judge(&self, told: &Told) -> Judgement {
        if self.membership.is_new() {
            return Judgement::Use;
        }
        let shared = match self.membership.shared(&told.ids) {
            // All slots may have other owners, or the node may have joined another cluster.
            Shared::None if told.is_by_member => Shared::Few,
            shared => shared,
        };
        let known = &self.state.lock().view;
        if shared == Shared::None {
            Judgement::Foreign
        } else if told.view.is_older_than(known) {
            Judgement::Older
        } else if shared == Shared::Most && told.view.replaces(known) {
            Judgement::Use
        } else {
            Judgement::AskOthers(shared)
        }
    }

    /// Ends the connections to a node that has left the cluster.
    pub(super) fn leave(&self, address: &NodeAddress) {
        self.membership.found_foreign(address);
        let left = self.state.lock().nodes.remove(address);
        self.reporter.waking(|| self.changed.notify_one());
        drop(left);
    }

    /// Forgets the cluster, none of whose nodes replies, if an address of the URL leads to another one.
    pub(super) fn begin_anew(&self) {
        if !self.membership.begins_anew() {
            return;
        }
        let former = {
            let mut state = self.state.lock();
            state.view = ClusterView::default();
            state.names = NodeNames::default();
            std::mem::take(&mut state.nodes)
        };
        self.reporter.waking(|| self.changed.notify_one());
        drop(former);
        self.want_refresh();
    }

    /// Uses the slot map that a node has told, and forgets nodes that no longer own a slot. Before the first map, any
    /// server was accepted, so all other servers are forgotten then, and their next connections show which cluster they
    /// belong to.
    pub(super) fn replace_map(&self, told: Told, teller: &NodeAddress) {
        let Told {
            view, names, ids, ..
        } = told;
        let is_first = self.membership.uses_map(ids);
        let owners: HashSet<NodeAddress> = view.map.owners().cloned().collect();
        let forgotten: Vec<_> = {
            let mut state = self.state.lock();
            let seeds = &self.seeds;
            let gone: Vec<_> = state
                .nodes
                .keys()
                .filter(|known| {
                    if is_first {
                        *known != teller
                    } else {
                        !owners.contains(known) && !seeds.contains(known)
                    }
                })
                .cloned()
                .collect();
            for owner in view.map.gained_since(&state.view.map) {
                if let Some(known) = state.nodes.get(owner) {
                    known.server_node().doubt_epoch();
                }
            }
            state.view = if is_first || view.is_older_than(&state.view) {
                view
            } else {
                view.in_place_of(&state.view)
            };
            state.names = names;
            gone.iter()
                .filter_map(|gone| state.nodes.remove(gone))
                .collect()
        };
        for address in &owners {
            let _made = self.node(address);
        }
        if !forgotten.is_empty() {
            self.reporter.waking(|| self.changed.notify_one());
        }
        drop(forgotten);
    }

    /// Returns the nodes that own slots, in the order of their addresses.
    pub(super) fn owners(&self) -> Vec<Arc<ClusterNode>> {
        let mut owners: Vec<_> = self.state.lock().view.map.owners().cloned().collect();
        owners.sort_unstable();
        owners.iter().map(|address| self.node(address)).collect()
    }

    /// Returns the nodes of the URL.
    pub(super) fn seeds(&self) -> Vec<Arc<ClusterNode>> {
        self.seeds.iter().map(|seed| self.node(seed)).collect()
    }

    /// Records the runtime of the background worker, for all nodes.
    pub(super) fn driven_by(&self, worker: &Handle) {
        self.config.driven_by(worker);
    }

    /// Returns whether any runtime has a connection to a node that owns slots.
    pub(super) fn is_connected(&self) -> bool {
        let owners = self.owners();
        owners
            .iter()
            .any(|node| node.server.client.pool.is_any_connected())
    }

    /// Returns all nodes that are known.
    pub(super) fn known(&self) -> Vec<Arc<ClusterNode>> {
        self.state.lock().nodes.values().cloned().collect()
    }

    /// Returns the addresses to ask for the slot map: nodes that own slots, and the seeds.
    pub(super) fn candidates(&self) -> Vec<NodeAddress> {
        let mut candidates: Vec<_> = self.state.lock().view.map.owners().cloned().collect();
        let unknown = self.seeds.iter().filter(|seed| !candidates.contains(seed));
        let unknown: Vec<_> = unknown.cloned().collect();
        candidates.extend(unknown);
        candidates
    }

    /// Renews the logins of all nodes for as long as it is polled.
    pub(super) async fn renew_logins(&self) {
        if let Some(source) = &self.config.credentials {
            credentials::renew_logins(Arc::clone(source)).await;
        }
    }

    /// Reports a client certificate that expires soon, for as long as it is polled. The nodes share it.
    pub(super) async fn watch_client_certificate(&self) {
        self.config.watch_client_certificate().await;
    }

    /// Returns whether a waiter of the first node gets notifications.
    pub(super) async fn can_subscribe(&self, limit: Duration) -> bool {
        let deadline = Deadline::after(Clock::System, limit);
        let first = self
            .state
            .lock()
            .view
            .map
            .first_owned()
            .map(|(slot, at)| (slot, at.clone()));
        let Some((slot, address)) = first else {
            return false;
        };
        let client = Arc::clone(&self.node(&address).server.client);
        if !client.pool.connector.can_subscribe() {
            return false;
        }
        match client.pool.for_current_runtime(deadline).await {
            Ok(connection) => {
                let run_id = connection.first.run_id;
                let limit = || deadline.left();
                let channel = client.channels.slot_up_for(slot, run_id, limit).await;
                channel.is_some()
            }
            Err(_unreachable) => false,
        }
    }

    /// Receives the notifications of all nodes for as long as it is polled.
    pub(super) async fn listen_all(&self) {
        let mut listening: HashMap<NodeAddress, (Weak<ClusterNode>, AbortHandle)> = HashMap::new();
        let mut tasks = JoinSet::new();
        loop {
            let changed = self.changed.notified();
            let known = self.known();
            // Those of forgotten nodes. The others end with this future.
            while tasks.try_join_next().is_some() {}
            listening.retain(|_, (node, task)| {
                let is_known = node
                    .upgrade()
                    .is_some_and(|node| known.iter().any(|known| Arc::ptr_eq(known, &node)));
                if !is_known {
                    task.abort();
                }
                is_known
            });
            for node in known {
                listening.entry(node.address.clone()).or_insert_with(|| {
                    let client = Arc::clone(&node.server.client);
                    (
                        Arc::downgrade(&node),
                        tasks.spawn(listening::listen(client)),
                    )
                });
            }
            changed.await;
        }
    }

    /// Checks that the owners of slots confirm at all, if the manager wants that. A node that cannot be reached now
    /// does not count.
    pub(super) async fn probe_confirmers(&self, limit: Duration) -> Result<(), LockError> {
        let mut probes = JoinSet::new();
        for node in self.owners() {
            probes.spawn(async move {
                match &node.server.confirmer {
                    Some(confirmer) => confirmer.probe(limit).await,
                    None => Ok(()),
                }
            });
        }
        while let Some(probed) = probes.join_next().await {
            if let Ok(Err(LockError::Backend(error))) = probed
                && is_about_settings(error.kind())
            {
                return Err(LockError::Backend(error));
            }
        }
        Ok(())
    }

    pub(super) fn traits(&self) -> StoreTraits {
        self.config.traits()
    }

    pub(super) fn was_reached(&self) -> bool {
        self.config.was_reached()
    }

    pub(super) fn has_tls(&self) -> bool {
        self.config.tls.is_some()
    }
}

/// Returns whether an operator has to change something before the node confirms.
fn is_about_settings(kind: BackendErrorKind) -> bool {
    matches!(
        kind,
        BackendErrorKind::Misconfigured
            | BackendErrorKind::Unsupported
            | BackendErrorKind::Permission
    )
}
