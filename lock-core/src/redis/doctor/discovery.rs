//! Asks the servers of the URL for the others.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::{Part, Server};
use crate::error::LockError;
use crate::redis::cluster::{MAX_NODES, MapNode, add_others, nodes_of};
use crate::redis::deployment::{NodeAddress, Sentinels};
use crate::redis::membership::Membership;
use crate::redis::node::Node;
use crate::redis::node_config::NodeConfig;
use crate::redis::sentinel::{SentinelWatch, listed};
use crate::sync::assert_no_mutex_held;
use lock_protocol::codec::accepted;
use lock_protocol::identity::Info;
use lock_protocol::op::Refusal;
use lock_protocol::primary::ListedSentinel;
use lock_protocol::resp::{Replies, Reply};

/// The most Sentinels, and the most replicas, that are learned from others. They get the passwords of the URL.
const MOST_LEARNED: usize = 32;

/// Asks each of these servers the same questions, side by side. Returns the replies in the order of the servers.
///
/// # Errors
/// The runtime is shutting down.
async fn ask_each(
    servers: Vec<Arc<Server>>,
    questions: Vec<Vec<String>>,
) -> Result<Vec<Result<Vec<Vec<u8>>, LockError>>, LockError> {
    let mut asking = JoinSet::new();
    let questions = Arc::new(questions);
    for (at, server) in servers.into_iter().enumerate() {
        let questions = Arc::clone(&questions);
        assert_no_mutex_held();
        asking.spawn(async move {
            let asked = async {
                let mut connection = server.open().await?;
                let replies = connection.ask_raw(&questions).await;
                replies.map_err(|_broken| server.connector.no_answer())
            };
            (at, asked.await)
        });
    }
    let mut replies = Vec::new();
    while let Some(asked) = asking.join_next().await {
        replies.push(asked.map_err(|_ended| LockError::NoRuntime)?);
    }
    replies.sort_by_key(|(at, _)| *at);
    Ok(replies.into_iter().map(|(_, asked)| asked).collect())
}

fn words<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).into()
}

/// Reads one reply.
fn reply(bytes: &[u8]) -> Result<Reply<'_>, Refusal> {
    accepted(Replies::new(bytes).next())
}

/// Finds the primary as the library does, and asks the Sentinels of the URL for the others and for the replicas.
pub(super) async fn behind_sentinels(
    config: &Arc<NodeConfig>,
    of_sentinels: &Arc<NodeConfig>,
    sentinels: &Sentinels,
    unknown: &mut Vec<String>,
) -> Result<Vec<Server>, LockError> {
    let announced = |config: &Arc<NodeConfig>, address: &NodeAddress, part| {
        let node = Node::new(address.clone()).announced_by_sentinels();
        Server::new(Arc::clone(config), node, part)
    };
    let watch = SentinelWatch::begin(sentinels.clone(), config, config.timeout()).await;
    let primary = match watch {
        Ok(watch) => watch.node().map(|node| node.address.clone()),
        // Others may know it soon.
        Err(error) if error.is_retryable() => {
            unknown.push(error.to_string());
            None
        }
        Err(error) => return Err(error),
    };
    let of_url = |address: &NodeAddress| {
        let node = Node::new(address.clone());
        Arc::new(Server::new(Arc::clone(of_sentinels), node, Part::Sentinel))
    };
    let of_url: Vec<_> = sentinels.addresses.iter().map(of_url).collect();
    let questions = vec![
        words(["SENTINEL", "SENTINELS", &sentinels.service]),
        words(["SENTINEL", "REPLICAS", &sentinels.service]),
        words(["SENTINEL", "MYID"]),
    ];
    let told = ask_each(of_url.clone(), questions).await?;
    let (mut others, mut replicas, mut own) = (Vec::new(), Vec::new(), Vec::new());
    for (server, replies) in of_url.iter().zip(&told) {
        // Its own report says why it has not replied.
        let Ok(replies) = replies else { continue };
        for (bytes, (what, found)) in replies.iter().zip([
            ("other Sentinels", &mut others),
            ("replicas", &mut replicas),
        ]) {
            match reply(bytes) {
                Ok(list) => found.extend(list.items().into_iter().flatten().filter_map(listed)),
                Err(refusal) => unknown.push(format!(
                    "the Sentinel at {} does not name the {what} ({})",
                    server.address(),
                    refusal.text
                )),
            }
        }
        let id = replies.get(2).and_then(|bytes| reply(bytes).ok()?.word());
        own.extend(id);
    }
    // A Sentinel has one run id, whatever its addresses are.
    others.retain(|other: &ListedSentinel<_>| {
        let is_own = |id: &String| own.contains(&id.as_str());
        !sentinels.addresses.contains(&other.address) && !other.run_id.as_ref().is_some_and(is_own)
    });
    replicas.retain(|it| primary.as_ref() != Some(&it.address));
    let others = learned(others, "Sentinels", unknown);
    let replicas = learned(replicas, "replicas", unknown);
    let primary = primary
        .iter()
        .map(|it| announced(config, it, Part::Primary));
    let replicas = replicas
        .iter()
        .map(|it| announced(config, it, Part::Replica));
    let others = others
        .iter()
        .map(|it| announced(of_sentinels, it, Part::Sentinel));
    let of_url = of_url.into_iter().filter_map(Arc::into_inner);
    Ok(primary
        .chain(replicas)
        .chain(of_url)
        .chain(others)
        .collect())
}

/// Returns the address of each, once and within the bound.
fn learned(
    listed: Vec<ListedSentinel<NodeAddress>>,
    what: &str,
    unknown: &mut Vec<String>,
) -> Vec<NodeAddress> {
    let mut addresses: Vec<_> = listed.into_iter().map(|it| it.address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    if addresses.len() > MOST_LEARNED {
        unknown.push(format!(
            "the Sentinels list {} {what}, of which {MOST_LEARNED} are checked",
            addresses.len()
        ));
        addresses.truncate(MOST_LEARNED);
    }
    addresses
}

/// Asks the nodes in the URL for the slot map, and takes the first map that one of them has.
pub(super) async fn in_cluster(
    config: &Arc<NodeConfig>,
    seeds: &[NodeAddress],
    unknown: &mut Vec<String>,
) -> Result<Vec<Server>, LockError> {
    let membership = Arc::new(Membership::new(seeds.to_vec()));
    let server = |address: &NodeAddress, aliases, part, slots| {
        let node = Node::in_cluster(address.clone(), aliases, &membership);
        Server::new(Arc::clone(config), node, part).in_cluster(slots)
    };
    let of_url: Vec<_> = seeds
        .iter()
        .map(|seed| Arc::new(server(seed, Vec::new(), Part::Unlisted, Vec::new())))
        .collect();
    let questions = vec![
        words(["CLUSTER", "SLOTS"]),
        words(["CLUSTER", "MYID"]),
        words(["CLUSTER", "NODES"]),
    ];
    let told = ask_each(of_url.clone(), questions).await?;
    let has_tls = config.tls.is_some();
    let mut nodes: Vec<MapNode> = Vec::new();
    let mut ids = Vec::new();
    for (seed, replies) in seeds.iter().zip(&told) {
        let Ok([slots, id, lines]) = replies.as_deref() else {
            // Its own report says why it has not replied.
            ids.push(SeedId::Unlisted);
            continue;
        };
        ids.push(SeedId::read(slots, id, lines));
        match reply(slots) {
            Ok(slots) if nodes.is_empty() => {
                nodes = nodes_of(slots, seed, has_tls);
                match reply(lines) {
                    Ok(lines) if !nodes.is_empty() => {
                        let lines = Info::read(lines).map_or("", Info::as_str);
                        add_others(&mut nodes, lines, has_tls);
                    }
                    Ok(_) => {}
                    Err(refusal) => unknown.push(format!(
                        "replicas that have failed, and nodes without slots: the node at {seed} does not list them ({})",
                        refusal.text
                    )),
                }
            }
            Ok(_) => {}
            Err(refusal) => unknown.push(format!(
                "the node at {seed} does not tell the slots of the cluster ({})",
                refusal.text
            )),
        }
    }
    if nodes.is_empty() && unknown.is_empty() {
        unknown.push("no node of the URL knows the slots of the cluster".to_owned());
    }
    if nodes.len() > MAX_NODES {
        unknown.push(format!(
            "the cluster lists more than {MAX_NODES} nodes: only {MAX_NODES} of them are checked"
        ));
        nodes.truncate(MAX_NODES);
    }
    let mut unlisted = Vec::new();
    for ((seed, id), server) in seeds.iter().zip(ids).zip(of_url) {
        let has_address = |node: &MapNode| node.address == *seed || node.aliases.contains(seed);
        if nodes.iter().any(has_address) {
            continue;
        }
        match id {
            SeedId::Known(id) if nodes.iter().any(|node| node.id == id) => {}
            // As one of the nodes, it has a report under the address that the cluster announces.
            SeedId::Unknown if !nodes.is_empty() => unknown.push(format!(
                "the node at {seed} does not say which node of the cluster it is (CLUSTER MYID, CLUSTER NODES)"
            )),
            _ => unlisted.extend(Arc::into_inner(server)),
        }
    }
    let servers = nodes.into_iter().map(|node| {
        let part = if node.is_replica {
            Part::Replica
        } else {
            Part::Primary
        };
        server(&node.address, node.aliases, part, node.slots)
    });
    Ok(servers.chain(unlisted).collect())
}

/// Which node of the cluster a server of the URL is.
enum SeedId<'a> {
    Known(&'a str),
    /// It knows the cluster, but the user may ask for neither the id nor the list of nodes.
    Unknown,
    /// It has not replied, or knows no cluster.
    Unlisted,
}

impl<'a> SeedId<'a> {
    /// Reads the replies to `CLUSTER SLOTS`, `CLUSTER MYID` and `CLUSTER NODES`.
    fn read(slots: &[u8], id: &'a [u8], lines: &'a [u8]) -> Self {
        let marked = || {
            let lines = Info::read(reply(lines).ok()?)?.as_str();
            lines.lines().find_map(own_id)
        };
        let id = reply(id).ok().and_then(Reply::word);
        match id.or_else(marked) {
            Some(id) => Self::Known(id),
            None if reply(slots).is_ok() => Self::Unknown,
            None => Self::Unlisted,
        }
    }
}

/// Returns the id in the line of `CLUSTER NODES` that is about the node which replied.
fn own_id(line: &str) -> Option<&str> {
    let mut words = line.split(' ');
    let (id, flags) = (words.next()?, words.nth(1)?);
    flags.split(',').any(|flag| flag == "myself").then_some(id)
}
