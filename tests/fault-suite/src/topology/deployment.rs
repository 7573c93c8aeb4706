//! The servers of a round.

use std::thread::sleep;
use std::time::Duration;

use test_support::fixtures::all_keys;
use test_support::{FrozenClock, RedisCluster, RedisServer, SentinelService, eventually};

use super::{QUARANTINE, Topology};
use crate::history::LONGEST_TTL;
use crate::leftovers::is_lock;

/// Bound on the recovery from a fault. A Sentinel takes ten seconds to make an old primary a replica.
const RECOVERY: Duration = Duration::from_secs(60);

/// By how much the clocks of the last two servers of a quorum differ from the others.
pub(super) const SKEWS_US: [i64; 2] = [20_000_000, -20_000_000];

/// The servers of a round.
pub(super) enum Deployment {
    Sentinel(SentinelService),
    Cluster(RedisCluster),
    Quorum(QuorumServers),
}

/// The servers of a quorum. The last two have clocks of their own.
pub(super) struct QuorumServers {
    pub(super) servers: Vec<RedisServer>,
    pub(super) clocks: [FrozenClock; 2],
}

impl Deployment {
    pub(super) fn start(topology: Topology) -> Self {
        match topology {
            Topology::Sentinel => Self::Sentinel(SentinelService::start()),
            Topology::Cluster => Self::Cluster(RedisCluster::start()),
            Topology::Quorum => {
                let clocks = [FrozenClock::at(0), FrozenClock::at(0)];
                let mut servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
                for (clock, skew) in clocks.iter().zip(SKEWS_US) {
                    clock.run_ahead_by(skew);
                    servers.push(RedisServer::options().clock(clock).start());
                }
                // Servers that have just started do not count.
                sleep(QUARANTINE + Duration::from_secs(2));
                Self::Quorum(QuorumServers { servers, clocks })
            }
        }
    }

    pub(super) fn url(&self) -> String {
        match self {
            Self::Sentinel(service) => service.url(),
            Self::Cluster(cluster) => cluster.url(),
            Self::Quorum(quorum) => {
                let hosts = quorum.servers.iter().map(|it| it.address().to_string());
                format!("redis+quorum://{}", hosts.collect::<Vec<_>>().join(","))
            }
        }
    }

    /// Waits until all servers run, and have the roles that they need for the next fault.
    pub(super) fn wait_ready(&self) {
        match self {
            Self::Sentinel(service) => eventually(RECOVERY, || {
                let info = service.primary().cli(&["INFO", "replication"]);
                info.text().matches("state=online").count() == 2
            }),
            Self::Cluster(cluster) => {
                cluster.wait_stable();
                eventually(RECOVERY, || {
                    let is_served = |node: &RedisServer| {
                        let info = node.cli(&["INFO", "replication"]);
                        let text = info.text();
                        text.contains("role:slave") && text.contains("master_link_status:up")
                            || text.contains("role:master") && text.contains("state=online")
                    };
                    cluster.nodes().iter().all(is_served)
                });
            }
            Self::Quorum(quorum) => eventually(RECOVERY, || {
                let runs = |server: &RedisServer| server.connect().is_ok();
                quorum.servers.iter().all(runs)
            }),
        }
    }

    /// Returns what changes with a failover.
    pub(super) fn owners(&self) -> Vec<u16> {
        match self {
            Self::Sentinel(service) => vec![service.primary().port()],
            Self::Cluster(cluster) => {
                let is_primary = |node: &&RedisServer| {
                    node.cli(&["INFO", "replication"])
                        .text()
                        .contains("role:master")
                };
                let primaries = cluster.nodes().iter().filter(is_primary);
                primaries.map(RedisServer::port).collect()
            }
            Self::Quorum(_) => Vec::new(),
        }
    }

    /// Returns how long the deployment needs until the next fault is a single one.
    pub(super) fn pause_between_faults(&self) -> Duration {
        match self {
            Self::Sentinel(_) | Self::Cluster(_) => LONGEST_TTL / 2,
            Self::Quorum(_) => QUARANTINE + Duration::from_secs(1),
        }
    }

    /// Returns the locks that outlived their holders by more than a ttl.
    pub(super) fn survivors(&self) -> Vec<String> {
        let servers: Vec<&RedisServer> = match self {
            Self::Sentinel(service) => vec![service.primary()],
            Self::Cluster(cluster) => cluster.nodes().iter().collect(),
            Self::Quorum(quorum) => quorum.servers.iter().collect(),
        };
        let keys = servers.into_iter().flat_map(all_keys);
        keys.filter(|key| is_lock(key)).collect()
    }
}
