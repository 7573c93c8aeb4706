//! Nodes that join and leave.

use super::nodes::{id, lines, ok, primary_id, serves};
use super::{RedisCluster, STEP, node_options};
use crate::server::RedisServer;
use crate::wait::eventually;

impl RedisCluster {
    /// Starts a new node, which takes over what a node is: its slots, or its primary. The old node leaves the cluster,
    /// and stops. The new node has the same place in [`nodes`](Self::nodes). Returns the old node, which keeps its port.
    ///
    /// # Panics
    ///
    /// Panics if a step needs more than 30 s.
    #[track_caller]
    pub fn replace(&mut self, at: usize) -> RedisServer {
        self.nodes.push(node_options().start());
        let (old, new) = (&self.nodes[at], &self.nodes[self.nodes.len() - 1]);
        let (old_id, new_id) = (id(old), id(new));
        self.join(new);
        let old_primary = primary_id(old);
        let primary = old_primary.clone().unwrap_or_else(|| old_id.clone());
        let follow = ["CLUSTER", "REPLICATE", &primary];
        eventually(STEP, || new.cli(&follow).error().is_none());
        eventually(STEP, || {
            let info = new.cli(&["INFO", "replication"]);
            info.text().contains("master_link_status:up") && self.all_see(&new_id, &primary)
        });
        if old_primary.is_none() {
            ok(new, &["CLUSTER", "FAILOVER"]);
            eventually(STEP, || {
                self.all_see(&new_id, "master") && self.all_see(&old_id, &new_id)
            });
            // Redis 8.0.2 left a replica behind that still followed the old primary.
            let follow = ["CLUSTER", "REPLICATE", &new_id];
            let follows_old = |node: &&RedisServer| primary_id(node).as_ref() == Some(&old_id);
            eventually(STEP, || {
                let behind: Vec<_> = self.nodes.iter().filter(follows_old).collect();
                for node in &behind {
                    // The next look shows whether it follows now.
                    let _reply = node.cli(&follow);
                }
                behind.is_empty()
            });
        }
        let old = self.nodes.swap_remove(at);
        for node in &self.nodes {
            // A node may have heard of it from the others.
            eventually(STEP, || {
                let reply = node.cli(&["CLUSTER", "FORGET", &old_id]);
                reply
                    .error()
                    .is_none_or(|line| line.contains("Unknown node"))
            });
        }
        old.shutdown();
        self.wait_known();
        self.wait_stable();
        old
    }

    /// Introduces a node to the cluster, and waits until all know each other.
    #[track_caller]
    pub(super) fn join(&self, node: &RedisServer) {
        eventually(STEP, || {
            // It gives up an introduction without an answer within the node timeout.
            if lines(node).len() == 1 {
                self.meet(node);
            }
            self.know_each_other()
        });
    }

    /// Waits until all nodes know each other, and no others, and serve.
    #[track_caller]
    fn wait_known(&self) {
        eventually(STEP, || self.know_each_other());
    }

    fn know_each_other(&self) -> bool {
        let knows_all = |node: &RedisServer| lines(node).len() == self.nodes.len() && serves(node);
        self.nodes.iter().all(knows_all)
    }

    /// Returns whether all nodes that reply see a node in this role, or as a replica of the primary with this id.
    pub(super) fn all_see(&self, id: &str, role: &str) -> bool {
        let views: Vec<_> = self.nodes.iter().map(lines).collect();
        let is_seen =
            |line: &String| line.starts_with(id) && line.contains(role) && !line.contains("fail");
        let mut replies = views.iter().filter(|lines| !lines.is_empty());
        replies.all(|lines| lines.iter().any(is_seen))
    }
}
