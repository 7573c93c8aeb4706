//! Samples of the keys of several servers. Each key is read where a client would acquire its lock.

use std::collections::BTreeMap;
use std::sync::Arc;

use lock_core::dialect::Dialect;
use test_support::{Connection, RedisCluster, RedisServer, Reply, SentinelService};

use super::deployment::Deployment;
use crate::clock::now;
use crate::environment::ADMIN_PATIENCE;
use crate::history::{KeyState, Sample};
use crate::leftovers::PREFIX;
use crate::sampler::{Sampler, names, sample, state_of};

/// After this many samples the Sentinels are asked again for the primary.
const PRIMARY_FOR: u32 = 10;

/// Starts the sampler of a deployment.
pub(super) fn start(deployment: &Arc<Deployment>, dialect: Dialect) -> Sampler {
    let deployment = Arc::clone(deployment);
    let mut connections = Connections::default();
    let mut owners = BTreeMap::new();
    let mut primary = (0, 0);
    Sampler::start_with(move |samples| match &*deployment {
        Deployment::Sentinel(servers) => {
            of_primary(
                &servers.service,
                &mut connections,
                &mut primary,
                dialect,
                samples,
            );
        }
        Deployment::Cluster(servers) => {
            of_owners(&servers.cluster, &mut connections, &mut owners, samples);
        }
        Deployment::Quorum(quorum) => {
            // Without a reply of each server it is not known whether a majority has a lock.
            let _incomplete = of_all(&quorum.servers, &mut connections, samples);
        }
    })
}

/// Connections to servers, by their ports.
#[derive(Default)]
struct Connections(BTreeMap<u16, Connection>);

impl Connections {
    /// Does something on a connection, which is dropped if it fails.
    fn with<T>(
        &mut self,
        server: &RedisServer,
        act: impl FnOnce(&mut Connection) -> Option<T>,
    ) -> Option<T> {
        let mut connection = if let Some(connection) = self.0.remove(&server.port()) {
            connection
        } else {
            let connection = server.connect().ok()?;
            connection.set_patience(ADMIN_PATIENCE).ok()?;
            connection
        };
        let done = act(&mut connection)?;
        self.0.insert(server.port(), connection);
        Some(done)
    }
}

fn of_primary(
    service: &SentinelService,
    connections: &mut Connections,
    (port, uses): &mut (u16, u32),
    dialect: Dialect,
    samples: &mut Vec<Sample>,
) {
    if *uses == 0 {
        (*port, *uses) = (service.primary().port(), PRIMARY_FOR);
    }
    *uses -= 1;
    let server = service.servers().iter().find(|it| it.port() == *port);
    let server = server.expect("the primary is one of the servers");
    let done = connections.with(server, |connection| sample(connection, dialect, samples));
    if done.is_none() {
        *uses = 0;
    }
}

fn of_owners(
    cluster: &RedisCluster,
    connections: &mut Connections,
    owners: &mut BTreeMap<&'static str, u16>,
    samples: &mut Vec<Sample>,
) {
    for name in names() {
        let key = format!("{PREFIX}{name}");
        let port = *owners
            .entry(name)
            .or_insert_with(|| cluster.owner_of(&key).port());
        let server = cluster.nodes().iter().find(|it| it.port() == port);
        let server = server.expect("the owner is one of the nodes");
        let from = now();
        let reply = connections.with(server, |connection| connection.call(&["GET", &key]).ok());
        let state = match &reply {
            // The slot has moved, or the node is down.
            Some(Reply::Error(text)) if text.starts_with("MOVED ") => {
                owners.remove(name);
                continue;
            }
            None => {
                owners.remove(name);
                continue;
            }
            // The slot is moving, and the key may be at the other node.
            Some(Reply::Error(_)) => continue,
            Some(value) => state_of(value),
        };
        samples.push(Sample {
            from,
            to: now(),
            key: name.to_owned(),
            state,
        });
    }
}

fn of_all(
    servers: &[RedisServer],
    connections: &mut Connections,
    samples: &mut Vec<Sample>,
) -> Option<()> {
    let mut words = vec!["MGET".to_owned()];
    words.extend(names().map(|name| format!("{PREFIX}{name}")));
    let from = now();
    let mut values = Vec::new();
    for server in servers {
        let reply = connections.with(server, |connection| connection.call(&words).ok())?;
        let Reply::Array(reply) = reply else {
            return None;
        };
        values.push(reply);
    }
    let to = now();
    for (number, name) in names().enumerate() {
        samples.push(Sample {
            from,
            to,
            key: name.to_owned(),
            state: majority(&values.iter().map(|it| &it[number]).collect::<Vec<_>>()),
        });
    }
    Some(())
}

/// Returns the state of a key that has these values at the servers of a quorum.
fn majority(values: &[&Reply]) -> KeyState {
    if values.iter().all(|value| **value == Reply::Nil) {
        return KeyState::Free;
    }
    let same = |value: &&Reply| values.iter().filter(|it| *it == value).count();
    let held = values.iter().find(|value| {
        let is_majority = same(value) > values.len() / 2;
        is_majority && ***value != Reply::Nil
    });
    held.map_or(KeyState::Divided, |value| state_of(value))
}

#[cfg(test)]
mod tests {
    use super::{KeyState, Reply, majority};

    #[test]
    fn key_of_a_quorum_is_held_by_a_majority_and_free_only_everywhere() {
        let value = |text: &str| Reply::Bulk(text.as_bytes().to_vec());
        let (a, b, free) = (value("a 7"), value("b 8"), Reply::Nil);
        let held = KeyState::Held { token: Some(7) };
        assert_eq!(majority(&[&a, &free, &a, &b, &a]), held);
        assert_eq!(majority(&[&a, &a, &b, &b, &free]), KeyState::Divided);
        assert_eq!(
            majority(&[&free, &free, &free, &free, &a]),
            KeyState::Divided
        );
        assert_eq!(majority(&[&free; 5]), KeyState::Free);
    }
}
