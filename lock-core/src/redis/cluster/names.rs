//! The host names of the nodes, for TLS.
//!
//! A redirection names the preferred endpoint of a node, which is a number by default. A certificate rarely has
//! the number. So the names that the nodes announce are kept for all of their endpoints.

use std::collections::HashMap;

use super::super::deployment::NodeAddress;
use super::map;
use lock_protocol::resp::Reply;

/// The address with the host name of a node, by each address that a redirection may have.
#[derive(Debug, Default)]
pub(super) struct NodeNames(HashMap<NodeAddress, NodeAddress>);

impl NodeNames {
    /// Reads the nodes in the reply to `CLUSTER SLOTS`, with the replicas: they may take over. A node without
    /// an endpoint is left out, because a redirection does not name it either.
    pub(super) fn from_slots(reply: Reply<'_>, from: &NodeAddress) -> Self {
        let mut names = Self::default();
        for range in reply.items().into_iter().flatten() {
            let parts = range.items().into_iter().flatten();
            for node in parts.skip(2) {
                let Some(name) = map::address(node, from, true) else {
                    continue;
                };
                for endpoint in map::endpoints(node) {
                    names.0.insert(endpoint, name.clone());
                }
            }
        }
        names
    }

    /// Reads the reply to `CLUSTER NODES`, which also has the nodes without slots. A line begins with
    /// `id 10.0.0.1:7000@17000,name`.
    pub(super) fn from_lines(text: &str) -> Self {
        let read = |line: &str| {
            let address = line.split(' ').nth(1)?;
            let (endpoint, rest) = address.split_once('@')?;
            let (host, port) = endpoint.rsplit_once(':')?;
            let port = port.parse().ok()?;
            // Later versions append fields with a name and a value.
            let name = rest.split(',').nth(1).unwrap_or_default();
            let has_name = !name.is_empty() && !name.contains('=') && name != "?";
            let name = if has_name { name } else { host };
            let at = |host: &str| NodeAddress::Tcp(host.to_owned(), port);
            (!host.is_empty()).then(|| (at(host), at(name)))
        };
        Self(text.lines().filter_map(read).collect())
    }

    /// Adds what another reply has told.
    pub(super) fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Returns the other addresses of the node with this one.
    pub(super) fn aliases_of(&self, name: &NodeAddress) -> Vec<NodeAddress> {
        let of_node =
            |(endpoint, known): &(&NodeAddress, &NodeAddress)| *known == name && *endpoint != name;
        let endpoints = self.0.iter().filter(of_node);
        endpoints.map(|(endpoint, _)| endpoint.clone()).collect()
    }

    /// Returns the address to connect to; `None` for an address that is in no reply.
    pub(super) fn name_of(&self, address: &NodeAddress) -> Option<&NodeAddress> {
        let name = self.0.get(address);
        name.or_else(|| self.0.values().find(|name| *name == address))
    }
}

#[cfg(test)]
mod tests {
    use super::super::map::tests::{array, bulk, first, int};
    use super::*;

    fn node(host: String, port: u32, metadata: &[(&str, &str)]) -> String {
        let pairs = metadata.iter().flat_map(|(name, text)| [*name, *text]);
        let metadata: Vec<_> = pairs.map(bulk).collect();
        array(&[host, int(port), bulk("id"), array(&metadata)])
    }

    fn at(host: &str, port: u16) -> NodeAddress {
        NodeAddress::Tcp(host.into(), port)
    }

    #[test]
    fn each_endpoint_of_a_node_has_its_name() {
        let reply = array(&[array(&[
            int(0),
            int(16_383),
            node(bulk("10.0.0.1"), 7000, &[("hostname", "a.example")]),
            node(bulk("b.example"), 7000, &[("ip", "10.0.0.2")]),
            node(bulk("10.0.0.3"), 7000, &[]),
            node("_\r\n".to_owned(), 7001, &[("hostname", "d.example")]),
        ])]);
        let names = NodeNames::from_slots(first(&reply), &at("seed", 1));
        for (address, name) in [
            ("10.0.0.1", Some("a.example")),
            ("a.example", Some("a.example")),
            ("10.0.0.2", Some("b.example")),
            ("10.0.0.3", Some("10.0.0.3")),
            ("10.0.0.4", None),
        ] {
            let name = name.map(|name| at(name, 7000));
            assert_eq!(
                names.name_of(&at(address, 7000)),
                name.as_ref(),
                "{address}"
            );
        }
        assert_eq!(names.name_of(&at("seed", 7001)), None);
        assert_eq!(
            names.aliases_of(&at("b.example", 7000)),
            [at("10.0.0.2", 7000)]
        );
        assert_eq!(names.aliases_of(&at("10.0.0.3", 7000)), []);
    }

    #[test]
    fn lines_have_the_nodes_without_slots() {
        let text = "a 10.0.0.1:7000@17000,a.example master - 0 0 1 connected 0-16383\n\
            b 10.0.0.2:7000@17000,b.example,shard-id=1 master - 0 0 2 connected\n\
            c 10.0.0.3:7000@17000,,shard-id=2 master - 0 0 2 connected\n\
            d ::1:7000@17000 master - 0 0 2 connected\n\
            e :0@0 master,noaddr - 0 0 2 disconnected\n\
            nonsense";
        let names = NodeNames::from_lines(text);
        for (address, name) in [
            ("10.0.0.1", Some("a.example")),
            ("10.0.0.2", Some("b.example")),
            ("10.0.0.3", Some("10.0.0.3")),
            ("::1", Some("::1")),
            ("10.0.0.4", None),
        ] {
            let name = name.map(|name| at(name, 7000));
            assert_eq!(
                names.name_of(&at(address, 7000)),
                name.as_ref(),
                "{address}"
            );
        }
    }
}
