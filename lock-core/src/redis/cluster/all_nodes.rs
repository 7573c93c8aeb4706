//! All nodes of a cluster, with the replicas, for `lockctl doctor`. A store needs the owners of the slots only.
//!
//! `CLUSTER SLOTS` is what a store reads, and what services have that hide their nodes. It leaves out replicas that failed or
//! have received nothing yet, and primaries without slots; `CLUSTER NODES` has them.

use super::super::deployment::NodeAddress;
use super::map;
use super::names::NodeNames;
use super::nodes::MAX_NODES;
use lock_protocol::resp::Reply;
use lock_protocol::route::HashSlot;

/// A node of a cluster.
pub(in crate::redis) struct MapNode {
    pub(in crate::redis) address: NodeAddress,
    /// Other addresses that it has announced. Empty without TLS.
    pub(in crate::redis) aliases: Vec<NodeAddress>,
    pub(in crate::redis) id: String,
    pub(in crate::redis) is_replica: bool,
    /// The slots that it or its primary owns: the first and the last of each range.
    pub(in crate::redis) slots: Vec<(HashSlot, HashSlot)>,
}

/// Reads the reply to `CLUSTER SLOTS`. Each primary comes before its replicas. More than [`MAX_NODES`] nodes are
/// returned as one more.
pub(in crate::redis) fn nodes_of(
    reply: Reply<'_>,
    from: &NodeAddress,
    has_tls: bool,
) -> Vec<MapNode> {
    let names = if has_tls {
        NodeNames::from_slots(reply, from)
    } else {
        NodeNames::default()
    };
    let mut nodes: Vec<MapNode> = Vec::new();
    for range in reply.items().into_iter().flatten() {
        if nodes.len() > MAX_NODES {
            break;
        }
        let mut parts = range.items().into_iter().flatten();
        let slots = parts.next().zip(parts.next());
        let Some(slots) = slots.and_then(|(first, last)| map::slot(first).zip(map::slot(last)))
        else {
            continue;
        };
        for (at, part) in parts.enumerate() {
            let Some(address) = map::address(part, from, has_tls) else {
                continue;
            };
            if let Some(known) = nodes.iter_mut().find(|node| node.address == address) {
                known.slots.push(slots);
                continue;
            }
            if nodes.len() > MAX_NODES {
                break;
            }
            let id = part.items().and_then(|mut parts| parts.nth(2)?.word());
            nodes.push(MapNode {
                aliases: names.aliases_of(&address),
                id: id.unwrap_or_default().to_owned(),
                address,
                is_replica: at > 0,
                slots: vec![slots],
            });
        }
    }
    nodes
}

/// Adds the nodes in the reply to `CLUSTER NODES` that the slot map doesn't have. A line is
/// `id 10.0.0.1:7000@17000,name flags primary ...`. More than [`MAX_NODES`] nodes become one more.
pub(in crate::redis) fn add_others(nodes: &mut Vec<MapNode>, lines: &str, has_tls: bool) {
    let names = NodeNames::from_lines(lines);
    for line in lines.lines() {
        if nodes.len() > MAX_NODES {
            break;
        }
        let mut words = line.split(' ');
        let (Some(id), Some(address), Some(flags)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        let has = |flag: &str| flags.split(',').any(|known| known == flag);
        let known = nodes.iter().any(|node| node.id == id);
        if known || has("noaddr") || has("handshake") {
            continue;
        }
        let endpoint = address.split('@').next().unwrap_or_default();
        let Some((host, port)) = endpoint.rsplit_once(':') else {
            continue;
        };
        let (false, Ok(port)) = (host.is_empty(), port.parse()) else {
            continue;
        };
        let endpoint = NodeAddress::Tcp(host.to_owned(), port);
        let name = names.name_of(&endpoint).filter(|_| has_tls);
        let address = name.unwrap_or(&endpoint).clone();
        let mut aliases = vec![endpoint];
        aliases.retain(|alias| *alias != address);
        nodes.push(MapNode {
            address,
            aliases,
            id: id.to_owned(),
            is_replica: has("slave"),
            slots: Vec::new(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::map::tests::{array, bulk, first, int};
    use super::*;

    #[test]
    fn nodes_of_several_ranges_are_one_each() {
        let node = |port: u32, id: &str| array(&[bulk("h"), int(port), bulk(id)]);
        let range =
            |from: u32, to: u32, nodes: &[String]| array(&[&[int(from), int(to)], nodes].concat());
        let reply = array(&[
            range(0, 9, &[node(1, "a"), node(2, "b")]),
            range(10, 19, &[node(3, "c")]),
            range(20, 29, &[node(1, "a"), node(2, "b")]),
            // Unknown, as a range that nobody should believe.
            range(20_000, 20_001, &[node(4, "d")]),
        ]);
        let from = NodeAddress::Tcp("seed".into(), 1);
        let nodes = nodes_of(first(&reply), &from, false);
        let found: Vec<_> = nodes
            .iter()
            .map(|node| {
                (
                    node.address.to_string(),
                    &*node.id,
                    node.is_replica,
                    &*node.slots,
                )
            })
            .collect();
        let split = [(0, 9), (20, 29)];
        assert_eq!(
            found,
            [
                ("h:1".to_owned(), "a", false, &split[..]),
                ("h:2".to_owned(), "b", true, &split[..]),
                ("h:3".to_owned(), "c", false, &[(10, 19)][..]),
            ]
        );
    }
    #[test]
    fn nodes_without_slots_are_added_once() {
        let known = || MapNode {
            address: NodeAddress::Tcp("h".into(), 1),
            aliases: Vec::new(),
            id: "a".to_owned(),
            is_replica: false,
            slots: vec![(0, 16_383)],
        };
        let lines = "a h:1@2 myself,master - 0 0 1 connected 0-16383\n\
            b 10.0.0.2:7000@17000,b.example slave,fail a 0 0 2 connected\n\
            c ::1:7001@17001 master - 0 0 2 connected\n\
            d :0@0 master,noaddr - 0 0 2 disconnected\n\
            nonsense\n";
        for (has_tls, name) in [(false, "10.0.0.2:7000"), (true, "b.example:7000")] {
            let mut nodes = vec![known()];
            add_others(&mut nodes, lines, has_tls);
            let found: Vec<_> = nodes
                .iter()
                .map(|node| (node.address.to_string(), node.is_replica))
                .collect();
            let [a, b, c] = ["h:1", name, "[::1]:7001"].map(str::to_owned);
            assert_eq!(found, [(a, false), (b, true), (c, false)]);
        }
    }

    /// A hostile node may list millions.
    #[test]
    fn no_more_nodes_are_read_than_show_that_there_are_too_many() {
        let count = 3 * u32::try_from(MAX_NODES).unwrap();
        let from = NodeAddress::Tcp("seed".into(), 1);
        let node = |at: u32| array(&[bulk("h"), int(at + 1), bulk(&format!("id{at}"))]);
        let range = |at: u32| array(&[int(0), int(0), node(at), node(at + count)]);
        let reply: Vec<_> = (0..count).map(range).collect();
        let nodes = nodes_of(first(&array(&reply)), &from, false);
        assert_eq!(nodes.len(), MAX_NODES + 1);
        let lines = (0..count).map(|at| format!("id{at} h:{}@1 master\n", at + 1));
        let mut nodes = Vec::new();
        add_others(&mut nodes, &lines.collect::<String>(), false);
        assert_eq!(nodes.len(), MAX_NODES + 1);
    }
}
