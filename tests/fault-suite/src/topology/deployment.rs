//! The servers of a round.

use std::thread::sleep;
use std::time::Duration;

use test_support::fixtures::all_keys;
use test_support::{FrozenClock, Proxy, RedisCluster, RedisServer, SentinelService, SlotMove};
use test_support::{eventually, holds_within};

use super::{QUARANTINE, Topology};
use crate::history::{LONGEST_TTL, SLOTS};
use crate::leftovers::is_lock;

/// Bound on the recovery from a fault. A Sentinel takes ten seconds to make an old primary a replica.
const RECOVERY: Duration = Duration::from_secs(60);

/// By how much the clocks of the last two servers of a quorum differ from the others.
pub(super) const SKEWS_US: [i64; 2] = [20_000_000, -20_000_000];

/// By how much the clocks of servers that begin as replicas differ from that of their primary. Twice the
/// greatest difference, and the time for which an old primary gives out tokens, are less than the minute that
/// a failover adds to the tokens.
const REPLICA_SKEWS_US: [i64; 2] = [9_000_000, -9_000_000];

/// How much longer than its ttl a key may live after a failover to a server with a slower clock.
const EXTRA_LIFE: Duration = Duration::from_secs(18);

/// The servers of a round.
pub(super) enum Deployment {
    Sentinel(SentinelServers),
    Cluster(ClusterServers),
    Quorum(QuorumServers),
}

/// The servers behind Sentinels. The replicas have clocks of their own.
pub(super) struct SentinelServers {
    pub(super) service: SentinelService,
    /// In front of the Sentinels, for the first half of the processes.
    pub(super) proxies: Vec<Proxy>,
    _clocks: [FrozenClock; 2],
}

/// The nodes of a cluster. Those that begin as replicas have clocks of their own.
pub(super) struct ClusterServers {
    pub(super) cluster: RedisCluster,
    _clocks: [FrozenClock; 2],
}

/// The servers of a quorum. The last two have clocks of their own.
pub(super) struct QuorumServers {
    pub(super) servers: Vec<RedisServer>,
    pub(super) clocks: [FrozenClock; 2],
    /// In front of all servers, for each half of the processes.
    pub(super) proxies: [Vec<Proxy>; 2],
}

/// Returns clocks that run ahead of the machine's clock.
fn clocks(ahead_us: [i64; 2]) -> [FrozenClock; 2] {
    ahead_us.map(|us| {
        let clock = FrozenClock::at(0);
        clock.run_ahead_by(us);
        clock
    })
}

impl Deployment {
    pub(super) fn start(topology: Topology) -> Self {
        let replicas = || clocks(REPLICA_SKEWS_US);
        match topology {
            Topology::Sentinel => {
                let clocks = replicas();
                let service = SentinelService::start_with(|number, options| match number {
                    0 => options,
                    _ => options.clock(&clocks[number - 1]),
                });
                Self::Sentinel(SentinelServers {
                    proxies: service.proxies(),
                    service,
                    _clocks: clocks,
                })
            }
            Topology::Cluster => {
                let clocks = replicas();
                let cluster = RedisCluster::start_with(|number, options| match number {
                    0..3 => options,
                    _ => options.clock(&clocks[number % 2]),
                });
                Self::Cluster(ClusterServers {
                    cluster,
                    _clocks: clocks,
                })
            }
            Topology::Quorum => {
                let clocks = clocks(SKEWS_US);
                let mut servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
                for clock in &clocks {
                    servers.push(RedisServer::options().clock(clock).start());
                }
                // Servers that have just started do not count.
                sleep(QUARANTINE + Duration::from_secs(2));
                let proxies = [(); 2].map(|()| servers.iter().map(Proxy::in_front_of).collect());
                Self::Quorum(QuorumServers {
                    servers,
                    clocks,
                    proxies,
                })
            }
        }
    }

    /// Returns the URL for the processes of each slot.
    pub(super) fn urls(&self) -> Vec<String> {
        let halves = match self {
            Self::Sentinel(servers) => {
                let service = &servers.service;
                [service.url_through(&servers.proxies), service.url()]
            }
            Self::Cluster(servers) => [(); 2].map(|()| servers.cluster.url()),
            Self::Quorum(quorum) => [0, 1].map(|half| {
                let hosts = quorum.proxies[half].iter();
                let hosts: Vec<_> = hosts.map(|it| it.address().to_string()).collect();
                format!("redis+quorum://{}", hosts.join(","))
            }),
        };
        (0..SLOTS as usize)
            .map(|slot| halves[slot * 2 / SLOTS as usize].clone())
            .collect()
    }

    pub(super) fn moves_slots_at_once(&self) -> bool {
        match self {
            Self::Cluster(servers) => servers.cluster.slot_moves().contains(&SlotMove::Atomic),
            _ => false,
        }
    }

    /// Returns whether the clocks of the servers differ all the time, while exclusion is promised.
    pub(super) fn clocks_differ(&self) -> bool {
        !matches!(self, Self::Quorum(_))
    }

    /// Waits until all servers run, and have the roles that they need for the next fault.
    pub(super) fn wait_ready(&self) {
        match self {
            Self::Sentinel(servers) => eventually(RECOVERY, || {
                let info = servers.service.primary().cli(&["INFO", "replication"]);
                info.text().matches("state=online").count() == 2
            }),
            Self::Cluster(ClusterServers { cluster, .. }) => {
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
            Self::Sentinel(servers) => vec![servers.service.primary().port()],
            Self::Cluster(ClusterServers { cluster, .. }) => {
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
        if self.clocks_differ() {
            let _ended = holds_within(EXTRA_LIFE, || self.locks().is_empty());
        }
        self.locks()
    }

    fn locks(&self) -> Vec<String> {
        let servers: Vec<&RedisServer> = match self {
            Self::Sentinel(servers) => vec![servers.service.primary()],
            Self::Cluster(servers) => servers.cluster.nodes().iter().collect(),
            Self::Quorum(quorum) => quorum.servers.iter().collect(),
        };
        let keys = servers.into_iter().flat_map(all_keys);
        keys.filter(|key| is_lock(key)).collect()
    }
}
