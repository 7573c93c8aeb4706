//! A Redis Cluster for a test.

use std::net::SocketAddr;
use std::time::Duration;

use crate::proxy::{Direction, Proxy};
use crate::replication;
use crate::resp::Reply;
use crate::server::{RedisServer, ServerOptions};
use crate::tls::{Authority, Certificate};
use crate::wait::{eventually, eventually_some};

mod membership;

use membership::primary_id;

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

/// How a slot moves to another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotMove {
    /// The slot is open meanwhile, and its keys are at two nodes.
    KeyByKey,
    /// The old owner copies the keys, and hands the slot over at once: Redis 8.4 and Valkey 9.
    Atomic,
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
        cluster.form();
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
        self.meet(replica);
        let is_primary = |line: &String| line.starts_with(&id) && line.contains("master");
        eventually(STEP, || {
            let mut views = self.nodes.iter().map(lines);
            views.all(|view| view.len() == self.nodes.len() && view.iter().any(is_primary))
                && serves(replica)
        });
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

    /// Opens the slot of a key: it is on its way to `to`.
    #[track_caller]
    pub fn begin_move(&self, key: &str, to: &RedisServer) {
        let (from, slot) = (self.owner_of(key), slot(key).to_string());
        ok(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]);
        ok(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]);
    }

    /// Moves some keys of a slot that is open.
    #[track_caller]
    pub fn move_keys(&self, keys: &[&str], to: &RedisServer) {
        let (from, port) = (self.owner_of(keys[0]), node_port(to));
        let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        command.extend(keys);
        eventually(STEP, || {
            let reply = from.cli(&command);
            let error = reply.error().unwrap_or_default();
            // On a loaded machine, the target may miss the other nodes for a moment. It has taken nothing then.
            let is_target_down = error.contains("CLUSTERDOWN");
            assert!(is_target_down || reply.error().is_none(), "{reply:?}");
            !is_target_down
        });
    }

    /// Moves the keys that are left, and closes the slot.
    #[track_caller]
    pub fn end_move(&self, key: &str, to: &RedisServer) {
        let (from, slot) = (self.owner_of(key), slot(key).to_string());
        loop {
            let left = from.cli(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
            let left: Vec<_> = left
                .array()
                .iter()
                .map(|key| key.text().to_owned())
                .collect();
            if left.is_empty() {
                break;
            }
            self.move_keys(&left.iter().map(String::as_str).collect::<Vec<_>>(), to);
        }
        let new = id(to);
        ok(to, &["CLUSTER", "SETSLOT", &slot, "NODE", &new]);
        ok(from, &["CLUSTER", "SETSLOT", &slot, "NODE", &new]);
        // The other nodes hear of it from these two.
        self.wait_for_owner(key, to);
    }

    /// Moves the slot of a key with all its keys.
    #[track_caller]
    pub fn move_slot(&self, key: &str, to: &RedisServer) {
        self.begin_move(key, to);
        self.end_move(key, to);
    }

    /// Returns the ways in which slots can move on this version of the server.
    #[track_caller]
    pub fn slot_moves(&self) -> &'static [SlotMove] {
        match atomic_move(&self.nodes[0]) {
            None => &[SlotMove::KeyByKey],
            Some(_) => &[SlotMove::KeyByKey, SlotMove::Atomic],
        }
    }

    /// Moves the slot of a key with all its keys, in this way.
    ///
    /// # Panics
    ///
    /// Panics if the server cannot, or needs more than 30 s.
    #[track_caller]
    pub fn move_slot_by(&self, way: SlotMove, key: &str, to: &RedisServer) {
        if way == SlotMove::KeyByKey {
            return self.move_slot(key, to);
        }
        let slot = slot(key).to_string();
        match atomic_move(&self.nodes[0]).expect("the server moves slots atomically") {
            AtomicMove::Import => ok(to, &["CLUSTER", "MIGRATION", "IMPORT", &slot, &slot]),
            AtomicMove::Send => {
                let (from, new) = (self.owner_of(key), id(to));
                let words = ["SLOTSRANGE", &slot, &slot, "NODE", &new];
                ok(from, &[&["CLUSTER", "MIGRATESLOTS"], &words[..]].concat());
            }
        }
        self.wait_for_owner(key, to);
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

    #[track_caller]
    fn form(&self) {
        for (at, node) in self.nodes.iter().enumerate() {
            ok(
                node,
                &["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()],
            );
        }
        let share = SLOTS / 3;
        for (at, node) in (0..3_u16).zip(&self.nodes) {
            let last = if at == 2 { SLOTS } else { share * (at + 1) } - 1;
            let (first, last) = ((share * at).to_string(), last.to_string());
            ok(node, &["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
        }
        eventually(STEP, || {
            self.meet_unknown();
            self.nodes.iter().all(|it| lines(it).len() == 6)
        });
        for at in 3..6 {
            let primary = id(&self.nodes[at - 3]);
            eventually(STEP, || {
                let reply = self.nodes[at].cli(&["CLUSTER", "REPLICATE", &primary]);
                reply.error().is_none()
            });
        }
        eventually(STEP, || {
            self.nodes.iter().all(serves)
                && self.nodes[..3].iter().all(|primary| {
                    let info = primary.cli(&["INFO", "replication"]);
                    info.text().contains("state=online")
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

fn url_of(hosts: impl Iterator<Item = SocketAddr>) -> String {
    let hosts: Vec<_> = hosts.map(|it| it.to_string()).collect();
    format!("redis+cluster://{}", hosts.join(","))
}

/// Returns whether a node takes commands for keys.
fn serves(node: &RedisServer) -> bool {
    let info = node.cli(&["CLUSTER", "INFO"]);
    info.text().contains("cluster_state:ok")
}

/// Returns the port for the other nodes.
fn node_port(node: &RedisServer) -> String {
    let port = node.tls_port().unwrap_or_else(|| node.port());
    port.to_string()
}

/// Who starts an atomic move.
enum AtomicMove {
    /// The new owner: Redis.
    Import,
    /// The old owner: Valkey.
    Send,
}

fn atomic_move(node: &RedisServer) -> Option<AtomicMove> {
    let help = node.cli(&["CLUSTER", "HELP"]);
    let knows = |name: &str| help.array().iter().any(|it| it.text().starts_with(name));
    if knows("MIGRATION ") {
        Some(AtomicMove::Import)
    } else {
        knows("MIGRATESLOTS ").then_some(AtomicMove::Send)
    }
}

/// Returns the slot of a key.
pub fn slot(key: &str) -> u16 {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    let hashed = tag.map_or(key, |(tag, _)| if tag.is_empty() { key } else { tag });
    let crc = hashed.bytes().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(byte) << 8), |crc, _| {
            (crc << 1) ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 }
        })
    });
    crc % SLOTS
}

/// The primaries as one node sees them: the port, the slots and the epoch of each. None if it is down.
type View = Vec<(u16, String, u64)>;

fn view(node: &RedisServer) -> Option<View> {
    let nodes = ask(node, &["CLUSTER", "NODES"])?;
    let mut view: View = nodes
        .text()
        .lines()
        .filter(|line| line.contains("master") && line.split(' ').count() > 8)
        .filter_map(|line| {
            let words: Vec<_> = line.split(' ').collect();
            // A slot that is open shows at its owner only.
            let slots: Vec<_> = words[8..]
                .iter()
                .filter(|it| !it.starts_with('['))
                .copied()
                .collect();
            Some((port_of(line)?, slots.join(" "), words[6].parse().ok()?))
        })
        .collect();
    view.sort_unstable();
    Some(view)
}

fn lines(node: &RedisServer) -> Vec<String> {
    let nodes = ask(node, &["CLUSTER", "NODES"]);
    let text = nodes
        .map(|nodes| nodes.text().to_owned())
        .unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn port_of(line: &str) -> Option<u16> {
    let address = line.split(' ').nth(1)?.split('@').next()?;
    address.rsplit(':').next()?.parse().ok()
}

fn owner_port(node: &RedisServer, slot: u16) -> Option<u16> {
    let ranges = ask(node, &["CLUSTER", "SLOTS"])?;
    let ranges = ranges.array();
    let range = ranges.iter().find(|range| {
        let ends = (range.array()[0].integer(), range.array()[1].integer());
        (ends.0..=ends.1).contains(&i64::from(slot))
    })?;
    u16::try_from(range.array()[2].array()[1].integer()).ok()
}

/// Returns the reply of a node, unless it is down.
fn ask(node: &RedisServer, words: &[&str]) -> Option<Reply> {
    let mut connection = node.connect().ok()?;
    connection.set_patience(Duration::from_millis(500)).ok()?;
    let reply = connection.call(words).ok()?;
    reply.error().is_none().then_some(reply)
}

#[track_caller]
fn id(node: &RedisServer) -> String {
    node.cli(&["CLUSTER", "MYID"]).text().to_owned()
}

#[track_caller]
fn ok(node: &RedisServer, words: &[&str]) {
    let reply = node.cli(words);
    assert!(reply.error().is_none(), "{words:?}: {reply:?}");
}
