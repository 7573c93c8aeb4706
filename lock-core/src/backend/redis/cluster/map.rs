//! Reads the reply to `CLUSTER SLOTS`.

use redis::Value;

use super::super::place::NodeAddress;
use lock_protocol::route::{HashSlot, SLOTS};

/// Slots in a row that one node owns.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OwnedRange {
    pub(super) first: HashSlot,
    pub(super) last: HashSlot,
    pub(super) owner: NodeAddress,
}

/// Reads the ranges. An empty or missing host is that of the node which replied. With TLS, the host name
/// in the metadata is preferred, because a certificate rarely has the number.
pub(super) fn ranges(reply: &Value, from: &NodeAddress, has_tls: bool) -> Option<Vec<OwnedRange>> {
    let Value::Array(ranges) = reply else {
        return None;
    };
    let read = |range: &Value| {
        let Value::Array(parts) = range else {
            return None;
        };
        let [first, last, owner, ..] = parts.as_slice() else {
            return None;
        };
        Some(OwnedRange {
            first: slot(first)?,
            last: slot(last)?,
            owner: address(owner, from, has_tls)?,
        })
    };
    ranges.iter().map(read).collect()
}

fn slot(value: &Value) -> Option<HashSlot> {
    let slot = redis::from_redis_value_ref(value).ok()?;
    (slot < SLOTS).then_some(slot)
}

/// Reads the address of a node.
pub(super) fn address(node: &Value, from: &NodeAddress, has_tls: bool) -> Option<NodeAddress> {
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
pub(super) fn endpoints(node: &Value) -> Vec<NodeAddress> {
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
    metadata: Option<&'a Value>,
}

impl<'a> NodeParts<'a> {
    fn read(node: &'a Value) -> Option<Self> {
        let Value::Array(parts) = node else {
            return None;
        };
        let [host, port, rest @ ..] = parts.as_slice() else {
            return None;
        };
        let host = redis::from_redis_value_ref::<String>(host).ok();
        Some(Self {
            host: host.filter(|host| !host.is_empty() && host != "?"),
            port: redis::from_redis_value_ref(port).ok()?,
            metadata: rest.get(1),
        })
    }

    fn metadata(&self, key: &str) -> Option<String> {
        let pairs = self.metadata?.as_map_iter()?;
        let text = |value: &Value| redis::from_redis_value_ref::<String>(value).ok();
        pairs
            .filter(|(name, _)| text(name).as_deref() == Some(key))
            .find_map(|(_, value)| text(value))
            .filter(|text| !text.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn range(first: i64, last: i64, node: Vec<Value>) -> Value {
        Value::Array(vec![
            Value::Int(first),
            Value::Int(last),
            Value::Array(node),
        ])
    }

    #[test]
    fn range_has_the_address_of_its_owner() {
        let from = NodeAddress::Tcp("seed".into(), 1);
        let named = Value::Array(vec![bulk("hostname"), bulk("a.example")]);
        let reply = Value::Array(vec![
            range(
                0,
                5,
                vec![bulk("10.0.0.1"), Value::Int(7000), bulk("id"), named],
            ),
            range(6, 6, vec![bulk(""), Value::Int(7001), bulk("id")]),
            range(7, 16383, vec![Value::Nil, Value::Int(7002), bulk("id")]),
        ]);
        for (has_tls, first) in [(false, "10.0.0.1"), (true, "a.example")] {
            let owners: Vec<_> = ranges(&reply, &from, has_tls)
                .unwrap()
                .into_iter()
                .map(|range| (range.first, range.last, range.owner.to_string()))
                .collect();
            assert_eq!(
                owners,
                [
                    (0, 5, format!("{first}:7000")),
                    (6, 6, "seed:7001".to_owned()),
                    (7, 16383, "seed:7002".to_owned()),
                ]
            );
        }
    }

    #[test]
    fn reply_of_another_form_is_no_map() {
        let from = NodeAddress::Tcp("seed".into(), 1);
        for reply in [
            Value::Nil,
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![Value::Array(vec![Value::Int(1)])]),
            Value::Array(vec![range(0, 99_999, vec![bulk("h"), Value::Int(1)])]),
        ] {
            assert_eq!(ranges(&reply, &from, false), None, "{reply:?}");
        }
    }
}
