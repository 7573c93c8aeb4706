//! Three primaries with a replica each, as local processes.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use examples::server::{Server, free_port};
use redis::FromRedisValue;
use tokio::time::sleep;

use crate::BoxError;

const SLOTS: u16 = 16_384;
/// How long a node may be silent before its replica takes over, in milliseconds.
const NODE_TIMEOUT: &str = "1500";
/// Bound on each step.
const STEP: Duration = Duration::from_secs(30);

/// A cluster. Dropping it kills its nodes and removes their files.
pub struct LocalCluster {
    nodes: Vec<Node>,
    folder: PathBuf,
}

struct Node {
    port: u16,
    /// The port that the nodes use among themselves.
    bus: u16,
    /// None while it is down.
    server: Option<Server>,
}

/// A primary and its slots, as a node sees it.
struct Primary {
    id: String,
    port: u16,
    slots: Vec<(u16, u16)>,
}

impl LocalCluster {
    /// Starts six nodes, and waits until they agree about the slots.
    pub async fn start() -> Result<Self, BoxError> {
        let folder = std::env::temp_dir().join(format!("lock-cluster-{}", std::process::id()));
        std::fs::create_dir(&folder)?;
        let mut cluster = Self {
            nodes: Vec::new(),
            folder,
        };
        for number in 0..6 {
            cluster.nodes.push(Node {
                port: free_port()?,
                bus: free_port()?,
                server: None,
            });
            cluster.restart(number).await?;
        }
        let share = SLOTS / 3;
        for number in 0..3_u16 {
            let first = share * number;
            let last = if number == 2 { SLOTS } else { first + share } - 1;
            let (first, last) = (first.to_string(), last.to_string());
            let words = ["CLUSTER", "ADDSLOTSRANGE", &first, &last];
            let () = cluster.ask(number.into(), &words).await?;
        }
        let (port, bus) = (cluster.nodes[0].port, cluster.nodes[0].bus);
        let (port, bus) = (port.to_string(), bus.to_string());
        let meet = ["CLUSTER", "MEET", "127.0.0.1", &port, &bus];
        until("the other nodes", async || {
            let mut know_all = true;
            for number in 1..6 {
                let nodes: String = cluster.ask(number, &["CLUSTER", "NODES"]).await?;
                let known = nodes.lines().count();
                know_all &= known == 6;
                // It knows only itself, or has given up a node that was slow to answer.
                if known == 1 {
                    let () = cluster.ask(number, &meet).await?;
                }
            }
            Ok(know_all)
        })
        .await?;
        for number in 0..3 {
            let id: String = cluster.ask(number, &["CLUSTER", "MYID"]).await?;
            let words = ["CLUSTER", "REPLICATE", &id];
            // It has to hear of the primary first.
            until("a replica", async || {
                let reply: Result<(), _> = cluster.ask(number + 3, &words).await;
                Ok(reply.is_ok())
            })
            .await?;
        }
        for number in 0..6 {
            until("the cluster", async || {
                let info: String = cluster.ask(number, &["CLUSTER", "INFO"]).await?;
                Ok(info.contains("cluster_state:ok"))
            })
            .await?;
        }
        for number in 0..3 {
            cluster.wait_for_replica_of(number).await?;
        }
        Ok(cluster)
    }

    /// Returns the URL with all nodes.
    pub fn url(&self) -> String {
        let address = |node: &Node| format!("127.0.0.1:{}", node.port);
        let hosts: Vec<_> = self.nodes.iter().map(address).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// Returns the number of the node that has the slot of a key.
    pub async fn owner_of(&self, key: &str) -> Result<usize, BoxError> {
        let (number, _) = self.owner(key).await?;
        Ok(number)
    }

    /// Moves the slot of a key, with its keys, to another primary while clients use it. Returns its number.
    pub async fn move_slot(&self, key: &str) -> Result<usize, BoxError> {
        let (from, owner) = self.owner(key).await?;
        let primaries = self.primaries().await?;
        // A replica looks like a primary until the nodes have heard of its role, but it has no slots.
        let is_other = |it: &&Primary| it.id != owner.id && !it.slots.is_empty();
        let other = primaries.iter().find(is_other);
        let other = other.ok_or("the cluster has one primary only")?;
        let to = self.number(other.port)?;
        let slot = self.slot(key).await?.to_string();
        let slot = slot.as_str();
        let open = ["CLUSTER", "SETSLOT", slot, "IMPORTING", &owner.id];
        let () = self.ask(to, &open).await?;
        let open = ["CLUSTER", "SETSLOT", slot, "MIGRATING", &other.id];
        let () = self.ask(from, &open).await?;
        loop {
            let words = ["CLUSTER", "GETKEYSINSLOT", slot, "100"];
            let keys: Vec<String> = self.ask(from, &words).await?;
            if keys.is_empty() {
                break;
            }
            let port = other.port.to_string();
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
            words.extend(keys.iter().map(String::as_str));
            let () = self.ask(from, &words).await?;
        }
        for number in [to, from] {
            let close = ["CLUSTER", "SETSLOT", slot, "NODE", &other.id];
            let () = self.ask(number, &close).await?;
        }
        Ok(to)
    }

    /// Kills a node.
    pub fn kill(&mut self, number: usize) {
        self.nodes[number].server = None;
    }

    /// Starts a node, also again after it was killed: its file knows the cluster.
    pub async fn restart(&mut self, number: usize) -> Result<(), BoxError> {
        let node = &mut self.nodes[number];
        let folder = self.folder.join(number.to_string());
        std::fs::create_dir_all(&folder)?;
        let folder = folder.to_str().ok_or("the folder has a name of text")?;
        let bus = node.bus.to_string();
        let arguments = [
            ["--cluster-enabled", "yes"],
            ["--cluster-port", &bus],
            ["--cluster-node-timeout", NODE_TIMEOUT],
            ["--dir", folder],
            ["--save", ""],
            ["--appendonly", "no"],
            ["--repl-diskless-sync-delay", "0"],
        ];
        let server = Server::start_at(node.port, arguments.as_flattened()).await?;
        node.server = Some(server);
        Ok(())
    }

    /// Waits until another node has the slot of a key, and returns its number.
    pub async fn owner_after(&self, key: &str, old: usize) -> Result<usize, BoxError> {
        until("a failover", async || {
            // All nodes that run see the new owner.
            Ok(self.owner_of(key).await.is_ok_and(|owner| owner != old))
        })
        .await?;
        self.owner_of(key).await
    }

    /// Waits until a replica has acknowledged all writes of a primary.
    pub async fn wait_for_replica_of(&self, primary: usize) -> Result<(), BoxError> {
        until("a replica that follows", async || {
            let info: String = self.ask(primary, &["INFO", "replication"]).await?;
            let field = |name: &str| {
                let (_, value) = info.split_once(name)?;
                value.split([',', '\r']).next()
            };
            // What the replica has acknowledged, and what the primary has written.
            let (acknowledged, written) =
                (field("state=online,offset="), field("master_repl_offset:"));
            Ok(acknowledged.is_some() && acknowledged == written)
        })
        .await
    }

    async fn owner(&self, key: &str) -> Result<(usize, Primary), BoxError> {
        let slot = self.slot(key).await?;
        let owns = |it: &Primary| it.slots.iter().any(|(a, b)| (*a..=*b).contains(&slot));
        let owner = self.primaries().await?.into_iter().find(owns);
        let owner = owner.ok_or("no node has the slot")?;
        Ok((self.number(owner.port)?, owner))
    }

    async fn slot(&self, key: &str) -> Result<u16, BoxError> {
        self.ask(self.live()?, &["CLUSTER", "KEYSLOT", key]).await
    }

    /// Returns the primaries that a node sees running.
    async fn primaries(&self) -> Result<Vec<Primary>, BoxError> {
        let nodes: String = self.ask(self.live()?, &["CLUSTER", "NODES"]).await?;
        Ok(nodes.lines().filter_map(primary).collect())
    }

    fn number(&self, port: u16) -> Result<usize, BoxError> {
        let number = self.nodes.iter().position(|it| it.port == port);
        number.ok_or_else(|| format!("no node has the port {port}").into())
    }

    fn live(&self) -> Result<usize, BoxError> {
        let live = self.nodes.iter().position(|it| it.server.is_some());
        live.ok_or_else(|| "no node runs".into())
    }

    async fn ask<T: FromRedisValue>(&self, number: usize, words: &[&str]) -> Result<T, BoxError> {
        let server = self.nodes[number]
            .server
            .as_ref()
            .ok_or("the node is down")?;
        let mut connection = server.connect().await?;
        let command = redis::cmd(words[0]).arg(&words[1..]).to_owned();
        Ok(command.query_async(&mut connection).await?)
    }
}

impl Drop for LocalCluster {
    fn drop(&mut self) {
        self.nodes.clear();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Reads a line of `CLUSTER NODES`: id, address, flags, primary, ping, pong, epoch, link, slots.
fn primary(line: &str) -> Option<Primary> {
    let words: Vec<&str> = line.split(' ').collect();
    let flags = words.get(2)?;
    if !flags.contains("master") || flags.contains("fail") {
        return None;
    }
    let (address, _) = words.get(1)?.split_once('@')?;
    let port = address.rsplit(':').next()?.parse().ok()?;
    let range = |word: &&str| {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    Some(Primary {
        id: words[0].to_owned(),
        port,
        slots: words.iter().skip(8).filter_map(range).collect(),
    })
}

/// Waits until a condition holds.
pub async fn until(
    what: &str,
    mut is_so: impl AsyncFnMut() -> Result<bool, BoxError>,
) -> Result<(), BoxError> {
    let begun = Instant::now();
    while !is_so().await? {
        if begun.elapsed() > STEP {
            return Err(format!("{what} did not come within {STEP:?}").into());
        }
        sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}
