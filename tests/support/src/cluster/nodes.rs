//! What one node of a cluster replies.

use std::time::Duration;

use super::SLOTS;
use crate::resp::Reply;
use crate::server::RedisServer;

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

/// Returns whether a node takes commands for keys.
pub(super) fn serves(node: &RedisServer) -> bool {
    let info = node.cli(&["CLUSTER", "INFO"]);
    info.text().contains("cluster_state:ok")
}

/// Returns the port for the other nodes.
pub(super) fn node_port(node: &RedisServer) -> String {
    let port = node.tls_port().unwrap_or_else(|| node.port());
    port.to_string()
}

/// The primaries as one node sees them: the port, the slots and the epoch of each. None if it is down.
pub(super) type View = Vec<(u16, String, u64)>;

pub(super) fn view(node: &RedisServer) -> Option<View> {
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

pub(super) fn lines(node: &RedisServer) -> Vec<String> {
    let nodes = ask(node, &["CLUSTER", "NODES"]);
    let text = nodes
        .map(|nodes| nodes.text().to_owned())
        .unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

pub(super) fn port_of(line: &str) -> Option<u16> {
    let address = line.split(' ').nth(1)?.split('@').next()?;
    address.rsplit(':').next()?.parse().ok()
}

pub(super) fn owner_port(node: &RedisServer, slot: u16) -> Option<u16> {
    let ranges = ask(node, &["CLUSTER", "SLOTS"])?;
    let ranges = ranges.array();
    let range = ranges.iter().find(|range| {
        let ends = (range.array()[0].integer(), range.array()[1].integer());
        (ends.0..=ends.1).contains(&i64::from(slot))
    })?;
    u16::try_from(range.array()[2].array()[1].integer()).ok()
}

/// Returns the reply of a node, unless it is down.
pub(super) fn ask(node: &RedisServer, words: &[&str]) -> Option<Reply> {
    let mut connection = node.connect().ok()?;
    connection.set_patience(Duration::from_millis(500)).ok()?;
    let reply = connection.call(words).ok()?;
    reply.error().is_none().then_some(reply)
}

#[track_caller]
pub(super) fn id(node: &RedisServer) -> String {
    node.cli(&["CLUSTER", "MYID"]).text().to_owned()
}

#[track_caller]
pub(super) fn ok(node: &RedisServer, words: &[&str]) {
    let reply = node.cli(words);
    assert!(reply.error().is_none(), "{words:?}: {reply:?}");
}

/// Returns the id of the primary that a replica follows; `None` for a primary.
pub(super) fn primary_id(node: &RedisServer) -> Option<String> {
    let lines = lines(node);
    let own = lines.iter().find(|line| line.contains("myself"))?;
    let primary = own.split(' ').nth(3)?;
    (primary != "-").then(|| primary.to_owned())
}
