//! Reads the reply to `CLUSTER SLOTS`.

use std::collections::HashSet;

use super::super::deployment::NodeAddress;
use super::super::membership::ids_of;
use lock_protocol::resp::Reply;
use lock_protocol::route::{HashSlot, SLOTS, SlotMap};

/// Reads the owners of the slots. An empty or missing host stands for the host of the node which replied. With TLS, the
/// host name in the metadata is preferred, because a certificate rarely has the number.
pub(super) fn read(
    reply: Reply<'_>,
    from: &NodeAddress,
    has_tls: bool,
) -> Option<SlotMap<NodeAddress>> {
    let read = |range: Reply<'_>| {
        let mut parts = range.items()?;
        Some((
            slot(parts.next()?)?,
            slot(parts.next()?)?,
            address(parts.next()?, from, has_tls)?,
        ))
    };
    let ranges: Option<Vec<_>> = reply.items()?.map(read).collect();
    Some(SlotMap::from_ranges(ranges?))
}

/// Returns the ids of all nodes, with the replicas, if the node that tells them has one of them. Some services put a proxy
/// in front of a cluster, whose nodes have other ids than the slot map. Then no node can be recognized by its id.
pub(super) fn ids_by(own_id: Option<&str>, reply: Reply<'_>) -> HashSet<String> {
    let ids = ids_of(reply);
    match own_id {
        Some(own_id) if ids.contains(own_id) => ids,
        _ => HashSet::new(),
    }
}

pub(super) fn slot(reply: Reply<'_>) -> Option<HashSlot> {
    let slot = reply.integer()?.try_into().ok()?;
    (slot < SLOTS).then_some(slot)
}

/// Reads the address of a node.
pub(super) fn address(node: Reply<'_>, from: &NodeAddress, has_tls: bool) -> Option<NodeAddress> {
    let node = NodeParts::read(node)?;
    let port = node.port;
    let name = node.metadata("hostname").filter(|_| has_tls);
    match (name.or(node.host), from) {
        (Some(host), _) => Some(NodeAddress::Tcp(host, port)),
        (None, NodeAddress::Tcp(host, _)) => Some(NodeAddress::Tcp(host.clone(), port)),
        (None, NodeAddress::Unix(_)) => None,
    }
}

/// Reads the addresses of a node that a redirection may have.
pub(super) fn endpoints(node: Reply<'_>) -> Vec<NodeAddress> {
    let Some(node) = NodeParts::read(node) else {
        return Vec::new();
    };
    let hosts = [node.metadata("ip"), node.host];
    let hosts = hosts.into_iter().flatten();
    hosts
        .map(|host| NodeAddress::Tcp(host, node.port))
        .collect()
}

/// One node of a range.
struct NodeParts<'a> {
    /// `None` if it is that of the node which replied.
    host: Option<String>,
    port: u16,
    metadata: Option<Reply<'a>>,
}

impl<'a> NodeParts<'a> {
    fn read(node: Reply<'a>) -> Option<Self> {
        let mut parts = node.items()?;
        let host = parts.next()?.word();
        Some(Self {
            host: host
                .filter(|host| !matches!(*host, "" | "?"))
                .map(str::to_owned),
            port: parts.next()?.integer()?.try_into().ok()?,
            // Behind the node's id.
            metadata: parts.nth(1),
        })
    }

    fn metadata(&self, key: &str) -> Option<String> {
        let mut pairs = self.metadata?.items()?;
        loop {
            let (name, value) = (pairs.next()?, pairs.next()?);
            if name.word() == Some(key) {
                let value = value.word().filter(|value| !value.is_empty());
                return value.map(str::to_owned);
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use lock_protocol::resp::Replies;

    pub(in super::super) fn bulk(text: &str) -> String {
        format!("${}\r\n{text}\r\n", text.len())
    }

    pub(in super::super) fn array(parts: &[String]) -> String {
        format!("*{}\r\n{}", parts.len(), parts.concat())
    }

    pub(in super::super) fn int(number: u32) -> String {
        format!(":{number}\r\n")
    }

    pub(in super::super) fn first(reply: &str) -> Reply<'_> {
        Replies::new(reply.as_bytes()).next().unwrap()
    }

    fn range(from: u32, to: u32, node: &[String]) -> String {
        array(&[int(from), int(to), array(node)])
    }

    #[test]
    fn range_has_the_address_of_its_owner() {
        let from = NodeAddress::Tcp("seed".into(), 1);
        let pair = bulk("hostname") + &bulk("a.example");
        // RESP2 and RESP3.
        for named in [format!("*2\r\n{pair}"), format!("%1\r\n{pair}")] {
            let reply = array(&[
                range(0, 5, &[bulk("10.0.0.1"), int(7000), bulk("id"), named]),
                range(6, 6, &[bulk(""), int(7001), bulk("id")]),
                range(7, 16383, &["_\r\n".to_owned(), int(7002), bulk("id")]),
            ]);
            for (has_tls, owner) in [(false, "10.0.0.1"), (true, "a.example")] {
                let map = read(first(&reply), &from, has_tls).unwrap();
                let owners = [0, 5, 6, 7, 16383].map(|slot| map.owner(slot).unwrap().to_string());
                let owner = format!("{owner}:7000");
                let expected = [&owner, &owner, "seed:7001", "seed:7002", "seed:7002"];
                assert_eq!(owners, expected);
            }
        }
    }

    #[test]
    fn ids_count_if_a_node_tells_its_own() {
        let node = |id: &str| vec![bulk("h"), int(1), bulk(id)];
        let nodes = array(&[int(0), int(9), array(&node("a")), array(&node("b"))]);
        let reply = array(&[nodes, range(10, 11, &[bulk("h"), int(2)])]);
        let all = HashSet::from(["a", "b"].map(str::to_owned));
        for own_id in ["a", "b"] {
            assert_eq!(ids_by(Some(own_id), first(&reply)), all);
        }
        for own_id in [None, Some("x"), Some("")] {
            assert_eq!(ids_by(own_id, first(&reply)), HashSet::new());
        }
    }

    #[test]
    fn reply_of_another_form_is_no_map() {
        let from = NodeAddress::Tcp("seed".into(), 1);
        for reply in [
            "_\r\n".to_owned(),
            array(&[int(1)]),
            array(&[array(&[int(1)])]),
            array(&[range(0, 99_999, &[bulk("h"), int(1)])]),
            array(&[range(0, 9, &[bulk("h"), int(99_999)])]),
        ] {
            assert!(read(first(&reply), &from, false).is_none(), "{reply:?}");
        }
    }

    mod fuzz {
        use super::*;
        use lock_protocol::resp::{FrameScan, OPERATOR_REPLY};

        #[test]
        fn slot_map_of_any_form_is_read_without_a_panic() {
            let pair = bulk("hostname") + &bulk("a.example") + &bulk("ip") + &bulk("10.0.0.9");
            let named = format!("*4\r\n{pair}");
            let examples = [
                array(&[range(
                    0,
                    16383,
                    &[bulk("10.0.0.1"), int(7000), bulk("id"), named],
                )]),
                array(&[
                    range(0, 5, &[bulk(""), int(7001), bulk("id")]),
                    range(7, 99, &["_\r\n".to_owned(), int(7002), bulk("x")]),
                ]),
            ];
            let from = NodeAddress::Tcp("seed".into(), 1);
            let words = ["hostname", ":16383\r\n", "*0\r\n", "_\r\n"];
            test_support::fuzz("slot maps", &examples, &words, |input| {
                let scanned = FrameScan::default().scan(input, OPERATOR_REPLY);
                let Ok(Some(len)) = scanned else {
                    return None;
                };
                let reply = Replies::new(&input[..len]).next().unwrap();
                let ids = [None, Some("id")].map(|own_id| ids_by(own_id, reply).len());
                let ranges = reply.items().into_iter().flatten();
                let nodes = ranges.flat_map(|range| range.items().into_iter().flatten());
                let endpoints = nodes.map(|node| endpoints(node).len()).sum::<usize>();
                let maps = [false, true].map(|has_tls| read(reply, &from, has_tls));
                let owned = maps.map(|map| map.map(|map| map.owned()));
                Some((
                    ids,
                    endpoints.min(20),
                    owned.map(|owned| owned.map(|slots| slots / 4096)),
                ))
            });
        }
    }
}
