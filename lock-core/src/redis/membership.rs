//! Which servers are nodes of the cluster in use.
//!
//! The address of a former node may be given to a node of another cluster, which would grant locks that are held in the
//! cluster in use. Each node has an id, and knows those of the others. So a server belongs to the cluster if its id, or
//! one of those that it knows, is in the slot map in use.
//!
//! A cluster that was set up anew has other ids. It is used once no node of the former one is connected, and only if an
//! address of the URL leads to it: other addresses were told by the former cluster.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use tokio::sync::Notify;

use super::place::NodeAddress;
use super::witness::Witness;
use crate::sync::Mutex;
use crate::telemetry::Reporter;

/// The nodes of the cluster in use.
pub(super) struct Membership {
    /// The addresses of the URL.
    seeds: Vec<NodeAddress>,
    state: Mutex<Members>,
    /// The connections to all nodes.
    connections: Mutex<Vec<Weak<dyn Witness>>>,
    /// Notified when the slot map has to be read again.
    pub(super) map_wanted: Notify,
    reporter: Arc<Reporter>,
}

#[derive(Default)]
struct Members {
    /// The ids in the slot map in use. Empty before the first map, and if the nodes don't tell their ids.
    ids: HashSet<String>,
    /// The next map is used, whatever the one before it was.
    begins_anew: bool,
}

impl Membership {
    pub(super) fn new(seeds: Vec<NodeAddress>, reporter: Arc<Reporter>) -> Self {
        Self {
            seeds,
            state: Mutex::default(),
            connections: Mutex::default(),
            map_wanted: Notify::new(),
            reporter,
        }
    }

    /// Makes the slot map be read soon.
    pub(super) fn want_map(&self) {
        self.reporter.waking(|| self.map_wanted.notify_one());
    }

    /// Records the ids in a slot map that is used from now on; without ids, those of the map before it stay. Returns
    /// whether it is the first map of its cluster.
    pub(super) fn uses_map(&self, ids: HashSet<String>) -> bool {
        let mut state = self.state.lock();
        if !ids.is_empty() {
            state.ids = ids;
        }
        std::mem::take(&mut state.begins_anew)
    }

    /// Returns whether a slot map has told which nodes belong to the cluster.
    pub(super) fn is_known(&self) -> bool {
        !self.state.lock().ids.is_empty()
    }

    /// Returns whether a node with one of these ids belongs to the cluster, as far as is known.
    pub(super) fn has_any<'a>(&self, ids: impl IntoIterator<Item = &'a str>) -> bool {
        let known = &self.state.lock().ids;
        known.is_empty() || ids.into_iter().any(|id| known.contains(id))
    }

    /// Records a connection to a node.
    pub(super) fn registers(&self, connection: Weak<dyn Witness>) {
        let mut connections = self.connections.lock();
        connections.retain(|known| known.strong_count() > 0);
        connections.push(connection);
    }

    fn is_connected(&self) -> bool {
        let connections: Vec<_> = {
            let connections = self.connections.lock();
            connections.iter().filter_map(Weak::upgrade).collect()
        };
        connections.into_iter().any(|it| it.is_open())
    }

    /// Takes the cluster at this address for the one in use, if the former one is gone. Returns whether it does so.
    pub(super) fn begins_anew(&self, at: &NodeAddress) -> bool {
        let may_begin = self.seeds.contains(at) && !self.is_connected();
        if may_begin {
            *self.state.lock() = Members {
                ids: HashSet::new(),
                begins_anew: true,
            };
            self.want_map();
        }
        may_begin
    }

    /// Returns whether the next map is the first one of its cluster.
    pub(super) fn has_begun_anew(&self) -> bool {
        self.state.lock().begins_anew
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::store::Boxed;

    struct Open(AtomicBool);

    impl Witness for Open {
        fn is_open(&self) -> bool {
            self.0.load(Ordering::Relaxed)
        }

        fn run_id(&self) -> u64 {
            1
        }

        fn peer(&self) -> Option<IpAddr> {
            None
        }

        fn is_replica(&self, _limit: Duration) -> Boxed<'_, Option<bool>> {
            Box::pin(std::future::ready(None))
        }
    }

    fn at(host: &str) -> NodeAddress {
        NodeAddress::Tcp(host.into(), 7000)
    }

    #[test]
    fn nodes_belong_to_the_cluster_if_they_know_one_of_its_nodes() {
        let membership = Membership::new(vec![at("seed")], Arc::default());
        assert!(membership.has_any(["anyone"]) && !membership.is_known());
        assert!(!membership.uses_map(["a", "b"].map(String::from).into()));
        assert!(membership.is_known());
        assert!(membership.has_any(["b"]) && membership.has_any(["new", "a"]));
        assert!(!membership.has_any(["x", "y"]));
        membership.uses_map(["x".to_owned()].into());
        assert!(membership.has_any(["x"]) && !membership.has_any(["a"]));
        membership.uses_map(HashSet::new());
        assert!(membership.has_any(["x"]) && !membership.has_any(["a"]));
    }

    #[test]
    fn another_cluster_is_used_at_an_address_of_the_url_once_no_node_is_connected() {
        let membership = Membership::new(vec![at("seed")], Arc::default());
        membership.uses_map(["a".to_owned()].into());
        let open = Arc::new(Open(AtomicBool::new(true)));
        let weak = Arc::downgrade(&open);
        membership.registers(weak);
        assert!(!membership.begins_anew(&at("seed")));
        open.0.store(false, Ordering::Relaxed);
        assert!(!membership.begins_anew(&at("learned")));
        assert!(!membership.has_any(["x"]));
        assert!(!membership.has_begun_anew());
        assert!(membership.begins_anew(&at("seed")));
        assert!(membership.has_any(["x"]) && membership.has_begun_anew());
        assert!(membership.uses_map(["x".to_owned()].into()));
        assert!(!membership.has_begun_anew() && !membership.has_any(["a"]));
    }
}
