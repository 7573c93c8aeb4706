//! Which servers are nodes of the cluster in use.
//!
//! The address of a former node may be given to a node of another cluster, which would grant locks that are held in the
//! cluster in use. Each node has an id, and a slot map has the ids of its nodes. So a server belongs to the cluster if its
//! id is in the slot map in use, or if its own map has an id of that one: a new node knows the others before they name it.
//!
//! A cluster that was set up anew has other ids. It is used once no node of the former one has been connected for some
//! time, and only if an address of the URL leads to it: other addresses were told by the former cluster.

use std::collections::HashSet;

use super::deployment::NodeAddress;
use crate::sync::Mutex;
use lock_protocol::resp::Reply;

/// The nodes of the cluster in use.
pub(super) struct Membership {
    /// The addresses of the URL.
    seeds: Vec<NodeAddress>,
    state: Mutex<Members>,
}

struct Members {
    /// The ids in the slot map in use. Empty before the first map, and as long as no node has told its own id and a map
    /// that contains it.
    ids: HashSet<String>,
    /// The next map is the first one of its cluster, and is used whatever it says.
    is_new: bool,
    /// An address of the URL leads to a node of another cluster.
    has_foreign_seed: bool,
}

impl Members {
    fn none() -> Self {
        Self {
            ids: HashSet::new(),
            is_new: true,
            has_foreign_seed: false,
        }
    }
}

/// How many ids a slot map shares with the one in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Shared {
    None,
    /// A node may have left the cluster, and belong to another one.
    Few,
    /// Half of those in use at least, or nothing is known of them.
    Most,
}

impl Membership {
    pub(super) fn new(seeds: Vec<NodeAddress>) -> Self {
        Self {
            seeds,
            state: Mutex::new(Members::none()),
        }
    }

    /// Returns whether the URL has this address.
    pub(super) fn is_seed(&self, address: &NodeAddress) -> bool {
        self.seeds.contains(address)
    }

    /// Records the ids in a slot map that is used from now on. A map without ids leaves the earlier ones in place. Returns
    /// whether it is the first map of its cluster.
    pub(super) fn uses_map(&self, ids: HashSet<String>) -> bool {
        let mut state = self.state.lock();
        if !ids.is_empty() {
            state.ids = ids;
        }
        state.has_foreign_seed = false;
        std::mem::take(&mut state.is_new)
    }

    /// Returns whether the next map is the first one of its cluster.
    pub(super) fn is_new(&self) -> bool {
        self.state.lock().is_new
    }

    /// Returns whether it is known which nodes belong to the cluster.
    pub(super) fn is_known(&self) -> bool {
        !self.state.lock().ids.is_empty()
    }

    /// Returns how many of the ids in use another map has, if it has any.
    pub(super) fn shared(&self, ids: &HashSet<String>) -> Shared {
        let known = &self.state.lock().ids;
        if known.is_empty() || ids.is_empty() {
            return Shared::Most;
        }
        match known.intersection(ids).count() {
            0 => Shared::None,
            shared if 2 * shared < known.len() => Shared::Few,
            _ => Shared::Most,
        }
    }

    /// Returns whether a node with this id belongs to the cluster, as far as is known.
    pub(super) fn has(&self, id: &str) -> bool {
        let known = &self.state.lock().ids;
        known.is_empty() || known.contains(id)
    }

    /// Records that the server at this address is a node of another cluster.
    pub(super) fn found_foreign(&self, at: &NodeAddress) {
        if self.is_seed(at) {
            self.state.lock().has_foreign_seed = true;
        }
    }

    /// Forgets the cluster, whose nodes don't reply any more, if an address of the URL leads to another one. Returns
    /// whether it does so.
    pub(super) fn begins_anew(&self) -> bool {
        let mut state = self.state.lock();
        let begins = state.has_foreign_seed;
        if begins {
            *state = Members::none();
        }
        begins
    }
}

/// Reads the ids of all nodes in the reply to `CLUSTER SLOTS`, with the replicas.
pub(super) fn ids_of(slots: Reply<'_>) -> HashSet<String> {
    let ranges = slots.items().into_iter().flatten();
    let nodes = ranges.flat_map(|range| range.items().into_iter().flatten().skip(2));
    let id = |node: Reply<'_>| node.items()?.nth(2)?.word().map(str::to_owned);
    nodes.filter_map(id).filter(|id| !id.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(host: &str) -> NodeAddress {
        NodeAddress::Tcp(host.into(), 7000)
    }

    fn ids<const N: usize>(ids: [&str; N]) -> HashSet<String> {
        ids.map(str::to_owned).into()
    }

    #[test]
    fn nodes_belong_to_the_cluster_by_their_ids() {
        let membership = Membership::new(vec![at("seed")]);
        assert!(membership.has("anyone") && !membership.is_known() && membership.is_new());
        assert_eq!(membership.shared(&ids(["x"])), Shared::Most);
        assert!(membership.uses_map(ids(["a", "b", "c"])));
        assert!(membership.is_known() && !membership.is_new());
        assert!(membership.has("b") && !membership.has("x"));
        for (told, shared) in [
            (ids(["a", "b", "x"]), Shared::Most),
            (ids(["c", "x", "y"]), Shared::Few),
            (ids(["x"]), Shared::None),
            (ids([]), Shared::Most),
        ] {
            assert_eq!(membership.shared(&told), shared, "{told:?}");
        }
        assert!(!membership.uses_map(ids(["x"])));
        assert!(membership.has("x") && !membership.has("a"));
        // A map without ids says nothing about them.
        membership.uses_map(ids([]));
        assert!(membership.has("x") && !membership.has("a"));
    }

    #[test]
    fn another_cluster_is_used_only_at_an_address_of_the_url() {
        let membership = Membership::new(vec![at("seed")]);
        membership.uses_map(ids(["a"]));
        assert!(!membership.begins_anew());
        membership.found_foreign(&at("learned"));
        assert!(!membership.begins_anew());
        membership.found_foreign(&at("seed"));
        // A node of the cluster has replied since.
        membership.uses_map(ids(["a"]));
        assert!(!membership.begins_anew() && !membership.has("x"));
        membership.found_foreign(&at("seed"));
        assert!(membership.begins_anew());
        assert!(membership.has("x") && membership.is_new());
        assert!(membership.uses_map(ids(["x"])));
        assert!(!membership.has("a"));
    }
}
