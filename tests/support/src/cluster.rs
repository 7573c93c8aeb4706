//! A Redis Cluster for a test.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::proxy::{Direction, Proxy};
use crate::replication;
use crate::server::{RedisServer, ServerOptions};
use crate::tls::{Authority, Certificate};
use crate::wait::{eventually, eventually_some};

mod membership;
mod nodes;
mod slot_moves;

pub use nodes::slot;
use nodes::{id, lines, node_port, ok, owner_port, port_of, primary_id, serves, view};
pub use slot_moves::SlotMove;

/// How many slots a cluster has.
const SLOTS: u16 = 16_384;
/// Bound on each step, on a loaded machine.
const STEP: Duration = Duration::from_secs(30);
/// How long a node may be silent before it is replaced.
const NODE_TIMEOUT: &str = "1500";

/// Three primaries with a replica each. Dropping it stops all.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
}

/// How a replica takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failover {
    /// With the consent of its primary.
    Agreed,
    /// Without its primary, but with the votes of the others.
    Force,
    /// Without any vote.
    Takeover,
}

impl RedisCluster {
    /// Starts a cluster, and waits until all nodes agree about it.
    pub fn start() -> Self {
        Self::start_with(|_, options| options)
    }

    /// As [`start`](Self::start). `change` gets the number of each node and its options: nodes 0 to 2
    /// begin as primaries, and nodes 3 to 5 as their replicas, in the same order.
    ///
    /// # Panics
    ///
    /// Panics if a node does not start.
    #[track_caller]
    pub fn start_with(change: impl Fn(usize, ServerOptions) -> ServerOptions) -> Self {
        let nodes: Vec<_> = (0..6)
            .map(|at| change(at, node_options()).start())
            .collect();
        let cluster = Self { nodes };
        cluster.form(3);
        cluster
    }

    /// Starts this many primaries without replicas, and waits until all agree about the cluster.
    ///
    /// # Panics
    ///
    /// Panics if a node does not start.
    #[track_caller]
    pub fn start_primaries(count: u16) -> Self {
        let nodes = (0..count).map(|_| node_options().start()).collect();
        let cluster = Self { nodes };
        cluster.form(count);
        cluster
    }

    /// As [`start`](Self::start), with TLS between the nodes too. The nodes announce the host name `localhost`, but
    /// redirections name 127.0.0.1.
    ///
    /// # Panics
    ///
    /// Panics if a node does not start.
    #[track_caller]
    pub fn start_tls(authority: &Authority, certificate: &Certificate) -> Self {
        Self::start_with(|_, options| {
            options
                .tls(authority, certificate, false)
                .args(["--tls-cluster", "yes", "--tls-replication", "yes"])
                .args(["--cluster-announce-hostname", "localhost"])
        })
    }

    /// Returns the URL with TLS, with all nodes.
    ///
    /// # Panics
    ///
    /// Panics if the nodes have no TLS.
    #[track_caller]
    pub fn tls_url(&self) -> String {
        let ports = self.nodes.iter().map(RedisServer::tls_port);
        let host = |port: Option<u16>| format!("localhost:{}", port.expect("start it with TLS"));
        let hosts: Vec<_> = ports.map(host).collect();
        format!("rediss+cluster://{}", hosts.join(","))
    }

    /// Returns the URL with all nodes.
    pub fn url(&self) -> String {
        url_of(self.nodes.iter().map(RedisServer::address))
    }

    /// Starts a proxy in front of each node. A client of the proxies does not learn of the nodes behind them.
    pub fn proxies(&self) -> Vec<Proxy> {
        let proxies: Vec<_> = self.nodes.iter().map(Proxy::in_front_of).collect();
        for proxy in &proxies {
            for (node, other) in self.nodes.iter().zip(&proxies) {
                let (node, other) = (node.port(), other.address().port());
                // In the slot map, and at the end of a redirection.
                let text = |port: u16| format!(":{port}\r\n");
                proxy.replace(Direction::ToClient, text(node), text(other));
            }
        }
        proxies
    }

    /// Returns the URL of the cluster behind these proxies.
    pub fn url_through(&self, proxies: &[Proxy]) -> String {
        url_of(proxies.iter().map(Proxy::address))
    }

    /// Returns all nodes, in the order of their start.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// Returns the primary that owns the slot of a key now, as most nodes see it.
    ///
    /// # Panics
    ///
    /// Panics if no node knows an owner.
    #[track_caller]
    pub fn owner_of(&self, key: &str) -> &RedisServer {
        let slot = slot(key);
        let seen: Vec<_> = self
            .nodes
            .iter()
            .filter_map(|it| owner_port(it, slot))
            .collect();
        let votes = |port: u16| seen.iter().filter(|it| **it == port).count();
        let owner = self.nodes.iter().max_by_key(|node| votes(node.port()));
        owner
            .filter(|it| votes(it.port()) > 0)
            .expect("a node knows the owner")
    }

    /// Returns the replica of a primary. After a failover, waits until the old primary has become one.
    ///
    /// # Panics
    ///
    /// Panics if it has none within 30 s.
    #[track_caller]
    pub fn replica_of(&self, primary: &RedisServer) -> &RedisServer {
        let id = id(primary);
        let line = eventually_some(STEP, || {
            lines(primary).into_iter().find(|line| {
                line.contains("slave")
                    && !line.contains("fail")
                    && line.contains(&format!(" {id} "))
            })
        });
        self.by_line(&line)
    }

    /// Makes a replica a primary without slots, as a new node is one.
    ///
    /// # Panics
    ///
    /// Panics if the other nodes do not see it so within 30 s.
    #[track_caller]
    pub fn detach(&self, replica: &RedisServer) {
        let id = id(replica);
        ok(replica, &["CLUSTER", "RESET", "SOFT"]);
        self.join(replica);
        eventually(STEP, || self.all_see(&id, "master"));
    }

    /// Cuts the replicas of a primary off: they get none of its writes from now on.
    ///
    /// # Panics
    ///
    /// Panics if they are still connected after 30 s.
    #[track_caller]
    pub fn cut_replication(&self, primary: &RedisServer) {
        replication::cut(primary);
    }

    /// Lets the replicas connect again that [`cut_replication`](Self::cut_replication) cut off.
    #[track_caller]
    pub fn restore_replication(&self, primary: &RedisServer) {
        replication::restore(primary);
    }

    /// Makes a replica take over, and waits until most nodes see it as the owner of the key's slot.
    ///
    /// # Panics
    ///
    /// Panics if it is not the owner within 30 s.
    #[track_caller]
    pub fn failover(&self, key: &str, replica: &RedisServer, kind: Failover) {
        let words: &[&str] = match kind {
            Failover::Agreed => &["CLUSTER", "FAILOVER"],
            Failover::Force => &["CLUSTER", "FAILOVER", "FORCE"],
            Failover::Takeover => &["CLUSTER", "FAILOVER", "TAKEOVER"],
        };
        if kind != Failover::Takeover
            && let Some(primary) = primary_id(replica)
        {
            // A node that does not know that the replica is one gives it no vote.
            eventually(STEP, || self.all_see(&id(replica), &primary));
        }
        ok(replica, words);
        self.wait_for_owner(key, replica);
    }

    /// Waits until most nodes see this node as the owner of the key's slot.
    ///
    /// # Panics
    ///
    /// Panics if it is not the owner within 30 s.
    #[track_caller]
    pub fn wait_for_owner(&self, key: &str, owner: &RedisServer) {
        eventually(STEP, || self.owner_of(key).port() == owner.port());
    }

    /// Waits until all nodes that reply serve all slots, know the same owners, and no two of those have
    /// the same epoch.
    ///
    /// # Panics
    ///
    /// Panics if they do not within 30 s.
    #[track_caller]
    pub fn wait_stable(&self) {
        eventually(STEP, || {
            let views: Vec<_> = self.nodes.iter().filter_map(view).collect();
            let Some(first) = views.first() else {
                return false;
            };
            let mut epochs: Vec<_> = first.iter().map(|(_, _, epoch)| *epoch).collect();
            epochs.sort_unstable();
            epochs.dedup();
            epochs.len() == first.len() && views.iter().all(|view| view == first)
        });
    }

    /// Makes the first nodes primaries, and the others their replicas in the same order.
    #[track_caller]
    fn form(&self, count: u16) {
        let (primaries, replicas) = self.nodes.split_at(count.into());
        for (at, node) in self.nodes.iter().enumerate() {
            ok(
                node,
                &["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()],
            );
        }
        let share = SLOTS / count;
        for (at, node) in (0..count).zip(primaries) {
            let is_last = at + 1 == count;
            let last = if is_last { SLOTS } else { share * (at + 1) } - 1;
            add_slots(node, share * at..=last);
        }
        eventually(STEP, || {
            self.meet_unknown();
            let all = self.nodes.len();
            self.nodes.iter().all(|it| lines(it).len() == all)
        });
        for (primary, replica) in primaries.iter().zip(replicas) {
            let primary = id(primary);
            eventually(STEP, || {
                let reply = replica.cli(&["CLUSTER", "REPLICATE", &primary]);
                reply.error().is_none()
            });
        }
        // A replica counts as a primary without slots until a node has heard what it is.
        let knows_roles = |node: &RedisServer| {
            let all = lines(node);
            let known = all.iter().filter(|line| line.contains("master"));
            known.count() == usize::from(count)
        };
        eventually(STEP, || {
            self.nodes
                .iter()
                .all(|node| serves(node) && knows_roles(node))
                && primaries.iter().zip(replicas).all(|(primary, replica)| {
                    let says = |node: &RedisServer, text| {
                        let info = node.cli(&["INFO", "replication"]);
                        info.text().contains(text)
                    };
                    // A replica that still loads cannot take over.
                    says(primary, "state=online") && says(replica, "master_link_status:up")
                })
        });
        self.wait_stable();
    }

    /// Introduces all nodes to the first one that it does not know. It forgets a node that does not answer its
    /// introduction within the node timeout.
    #[track_caller]
    fn meet_unknown(&self) {
        let known: Vec<_> = lines(&self.nodes[0])
            .iter()
            .filter_map(|it| port_of(it))
            .collect();
        let ports = |node: &RedisServer| [Some(node.port()), node.tls_port()];
        let is_known = |port: Option<u16>| port.is_some_and(|port| known.contains(&port));
        let is_unknown = |node: &&RedisServer| !ports(node).into_iter().any(is_known);
        for node in self.nodes[1..].iter().filter(is_unknown) {
            self.meet(node);
        }
    }

    /// Introduces a node to the first one.
    #[track_caller]
    fn meet(&self, node: &RedisServer) {
        let port = node_port(&self.nodes[0]);
        ok(node, &["CLUSTER", "MEET", "127.0.0.1", &port]);
    }

    #[track_caller]
    fn by_line(&self, line: &str) -> &RedisServer {
        let port = port_of(line);
        let node = self.nodes.iter().find(|it| Some(it.port()) == port);
        node.unwrap_or_else(|| panic!("no node of {line}"))
    }
}

/// Returns the options of a node.
fn node_options() -> ServerOptions {
    RedisServer::options()
        .args(["--cluster-enabled", "yes"])
        .args(["--cluster-node-timeout", NODE_TIMEOUT])
}

/// Makes a node the owner of slots. Before Redis 7 there is no `ADDSLOTSRANGE`.
#[track_caller]
fn add_slots(node: &RedisServer, slots: RangeInclusive<u16>) {
    let slots: Vec<_> = slots.map(|slot| slot.to_string()).collect();
    let slots = slots.iter().map(String::as_str);
    let words: Vec<_> = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots).collect();
    ok(node, &words);
}

/// Starts a cluster of one node.
///
/// # Panics
///
/// Panics if it does not serve all slots within 30 s.
#[track_caller]
#[must_use]
pub fn lone_node() -> RedisServer {
    let node = RedisServer::options()
        .args(["--cluster-enabled", "yes"])
        .start();
    add_slots(&node, 0..=SLOTS - 1);
    eventually(STEP, || serves(&node));
    node
}

fn url_of(hosts: impl Iterator<Item = SocketAddr>) -> String {
    let hosts: Vec<_> = hosts.map(|it| it.to_string()).collect();
    format!("redis+cluster://{}", hosts.join(","))
}
