//! The faults of each topology. Each one undoes its effects.

mod partitions;

use std::thread::sleep;
use std::time::{Duration, Instant};

use test_support::cluster::Failover;
use test_support::{Random, RedisCluster, RedisServer, SlotMove};

use super::Topology;
use super::deployment::{Deployment, QuorumServers, SKEWS_US, SentinelServers};
use crate::crew::Crew;
use crate::history::Assumption::{self, Inside, Outside};
use crate::history::SLOTS;
use crate::leftovers::PREFIX;
use crate::worker::{LONG_KEYS, SHORT_KEYS};

/// Less than the time after which Sentinels and nodes call a server down.
const SHORT_PAUSE: Duration = Duration::from_millis(500);

/// The step of a clock, in microseconds: longer than any quarantine, and far from the day at which tokens depend on it.
const STEP_US: i64 = 3_600_000_000;

/// The name of the fault that not all versions of the server can cause.
const AT_ONCE: &str = "slots-moved-at-once";

/// A fault of one topology.
#[derive(Clone, Copy)]
pub(super) struct TopologyFault {
    pub(super) name: &'static str,
    /// Whether exclusion is promised meanwhile.
    pub(super) assumption: Assumption,
    /// The owners of slots change, and no failover is needed for it.
    pub(super) moves_slots: bool,
    pub(super) act: fn(&mut FaultContext<'_>),
}

pub(super) struct FaultContext<'a> {
    pub(super) deployment: &'a Deployment,
    pub(super) crew: &'a Crew,
    pub(super) random: &'a mut Random,
    pub(super) until: Instant,
    /// The slots of the processes that the fault disturbed; empty for all.
    pub(super) slots: Vec<u32>,
}

const fn fault(
    name: &'static str,
    assumption: Assumption,
    act: fn(&mut FaultContext<'_>),
) -> TopologyFault {
    TopologyFault {
        name,
        assumption,
        moves_slots: false,
        act,
    }
}

/// Returns the faults of a topology.
pub(super) fn of(topology: Topology) -> Vec<TopologyFault> {
    let mut all = vec![
        fault("client-pause", Inside, client_pause),
        fault("client-kill", Inside, client_kill),
    ];
    match topology {
        Topology::Sentinel => all.extend([
            fault("primary-killed", Outside, primary_killed),
            fault(
                "primary-killed-unreplicated",
                Outside,
                primary_killed_unreplicated,
            ),
            fault("primary-stopped", Outside, primary_stopped),
            fault("primary-paused", Inside, primary_paused),
            fault("primary-isolated", Outside, partitions::primary_isolated),
            fault("sentinel-stopped", Inside, sentinel_stopped),
            fault("sentinels-endless", Inside, partitions::sentinels_endless),
            fault("sentinels-dripping", Inside, partitions::sentinels_dripping),
            fault("failover-commanded", Outside, failover_commanded),
        ]),
        Topology::Cluster => all.extend([
            fault("node-killed", Outside, node_killed),
            fault("node-killed-unreplicated", Outside, |it| {
                partitions::node_killed_unreplicated(it);
            }),
            fault("node-isolated", Outside, partitions::node_isolated),
            fault("node-stopped", Outside, node_stopped),
            fault("node-paused", Inside, node_paused),
            fault("failover-agreed", Outside, |it| {
                it.failover(Failover::Agreed);
            }),
            fault("failover-forced", Outside, |it| {
                it.failover(Failover::Force);
            }),
            fault("takeover", Outside, |it| it.failover(Failover::Takeover)),
            TopologyFault {
                moves_slots: true,
                ..fault("slots-moved", Inside, |it| {
                    move_slots(it, SlotMove::KeyByKey);
                })
            },
            TopologyFault {
                moves_slots: true,
                // The move copies the ends of leases as times of day, and the clocks differ by up to 18 s.
                ..fault(AT_ONCE, Outside, |it| move_slots(it, SlotMove::Atomic))
            },
        ]),
        Topology::Quorum => all.extend([
            fault("one-restarted-empty", Inside, |it| it.restart_empty(1)),
            fault("two-restarted-empty", Inside, |it| it.restart_empty(2)),
            fault("one-stopped", Inside, |it| it.stop_servers(1)),
            fault("two-stopped", Inside, |it| it.stop_servers(2)),
            fault("partition", Inside, |it| partitions::cut(it, [2, 2])),
            fault("partition-minority", Inside, |it| {
                partitions::cut(it, [3, 0]);
            }),
            fault("three-stopped", Inside, |it| it.stop_servers(3)),
            fault("replies-endless", Inside, partitions::replies_endless),
            fault("replies-dripping", Inside, partitions::replies_dripping),
            fault("clock-steps-at-restart", Inside, clock_steps_at_restart),
            fault("clock-forward", Outside, |it| it.move_clock(10_000_000)),
            fault("clock-back", Outside, |it| it.move_clock(-10_000_000)),
        ]),
    }
    all
}

fn client_pause(context: &mut FaultContext<'_>) {
    let slot = context.some_slot();
    context.crew.stop(slot);
    context.rest(200, 2_000);
    context.crew.cont(slot);
}

fn client_kill(context: &mut FaultContext<'_>) {
    while context.goes_on() {
        let slot = context.some_slot();
        context.crew.kill(slot);
        context.rest(0, 500);
        context.crew.spawn(slot);
        context.rest(300, 800);
    }
}

fn primary_killed(context: &mut FaultContext<'_>) {
    let service = context.service();
    let old = service.primary();
    old.kill9();
    service.wait_for_switch(old.port());
    old.restart();
}

/// The replicas miss the writes of the last moment.
fn primary_killed_unreplicated(context: &mut FaultContext<'_>) {
    let service = context.service();
    let old = service.primary();
    let replicas = service.servers().iter();
    let replicas: Vec<_> = replicas.filter(|it| it.port() != old.port()).collect();
    for replica in &replicas {
        replica.stop();
    }
    sleep(context.random.millis(50, 400));
    old.kill9();
    for replica in replicas {
        replica.cont();
    }
    service.wait_for_switch(old.port());
    old.restart();
}

/// It answers as a primary for some seconds after it continues.
fn primary_stopped(context: &mut FaultContext<'_>) {
    let service = context.service();
    let old = service.primary();
    old.stop();
    service.wait_for_switch(old.port());
    sleep(context.random.millis(0, 500));
    old.cont();
}

fn primary_paused(context: &mut FaultContext<'_>) {
    let old = context.service().primary();
    pause(old);
}

fn sentinel_stopped(context: &mut FaultContext<'_>) {
    let at = context.random.below(3);
    let sentinel = &context.service().sentinels()[at];
    sentinel.stop();
    context.rest(500, 2_000);
    sentinel.cont();
}

fn failover_commanded(context: &mut FaultContext<'_>) {
    context.service().failover();
}

fn node_killed(context: &mut FaultContext<'_>) {
    let (cluster, key) = (context.cluster(), context.key());
    let old = cluster.owner_of(&key);
    let replica = cluster.replica_of(old);
    old.kill9();
    cluster.wait_for_owner(&key, replica);
    old.restart();
}

fn node_stopped(context: &mut FaultContext<'_>) {
    let (cluster, key) = (context.cluster(), context.key());
    let old = cluster.owner_of(&key);
    let replica = cluster.replica_of(old);
    old.stop();
    cluster.wait_for_owner(&key, replica);
    sleep(context.random.millis(0, 500));
    old.cont();
}

fn node_paused(context: &mut FaultContext<'_>) {
    let (cluster, key) = (context.cluster(), context.key());
    pause(cluster.owner_of(&key));
}

/// Slots move while their locks are held and waited for.
fn move_slots(context: &mut FaultContext<'_>, way: SlotMove) {
    while context.goes_on() {
        let (cluster, key) = (context.cluster(), context.key());
        let old = cluster.owner_of(&key).port();
        let keys: Vec<_> = keys().collect();
        let owners = keys.iter().map(|other| cluster.owner_of(other));
        let others: Vec<_> = owners.filter(|it| it.port() != old).collect();
        if others.is_empty() {
            return;
        }
        let to = others[context.random.below(others.len())];
        match way {
            SlotMove::KeyByKey => {
                cluster.begin_move(&key, to);
                context.rest(0, 300);
                cluster.end_move(&key, to);
            }
            SlotMove::Atomic => cluster.move_slot_by(way, &key, to),
        }
        cluster.wait_stable();
    }
}

/// Two servers are silent, so that the other three have the locks. Two of these come back without their data, and their
/// clocks jump before a client connects: by their uptime they have run for longer than the quarantine.
fn clock_steps_at_restart(context: &mut FaultContext<'_>) {
    let quorum = context.quorum();
    // The first servers have the machine's clock.
    let first = quorum.servers.len() - quorum.clocks.len();
    let (steady, stepped) = quorum.servers.split_at(first);
    let in_front = || quorum.proxies.iter().flat_map(|proxies| &proxies[first..]);
    let step_clocks = |by_us: i64| {
        for (clock, skew) in quorum.clocks.iter().zip(SKEWS_US) {
            clock.run_ahead_by(skew + by_us);
        }
    };
    let silent = &steady[..2];
    for server in silent {
        server.stop();
    }
    context.rest(300, 900);
    for proxy in in_front() {
        proxy.refuse();
        proxy.cut_all();
    }
    for server in stepped {
        server.kill9();
    }
    step_clocks(0);
    for server in stepped {
        server.restart();
    }
    step_clocks(STEP_US);
    for proxy in in_front() {
        proxy.forward();
    }
    for server in silent {
        server.cont();
    }
    context.rest(500, 1_000);
}

fn pause(server: &RedisServer) {
    server.stop();
    sleep(SHORT_PAUSE);
    server.cont();
}

/// Returns the keys of the locks in use.
fn keys() -> impl Iterator<Item = String> {
    let names = SHORT_KEYS.iter().chain(&LONG_KEYS);
    names.map(|name| format!("{PREFIX}{name}"))
}

impl TopologyFault {
    /// Returns whether the servers can cause the fault: older versions move slots key by key only.
    pub(super) fn is_possible(&self, deployment: &Deployment) -> bool {
        self.name != AT_ONCE || deployment.moves_slots_at_once()
    }
}

impl<'a> FaultContext<'a> {
    fn goes_on(&self) -> bool {
        Instant::now() < self.until
    }

    fn rest(&mut self, from: u64, to: u64) {
        let pause = self.random.millis(from, to);
        sleep(pause.min(self.until.saturating_duration_since(Instant::now())));
    }

    /// Returns the slot of a process, which alone is disturbed.
    fn some_slot(&mut self) -> usize {
        let slot = self.random.number() % u64::from(SLOTS);
        let slot = u32::try_from(slot).expect("there are four slots");
        if !self.slots.contains(&slot) {
            self.slots.push(slot);
        }
        slot as usize
    }

    fn sentinel(&self) -> &'a SentinelServers {
        match self.deployment {
            Deployment::Sentinel(servers) => servers,
            _ => panic!("the fault is one of Sentinels"),
        }
    }

    fn service(&self) -> &'a test_support::SentinelService {
        &self.sentinel().service
    }

    fn cluster(&self) -> &'a RedisCluster {
        match self.deployment {
            Deployment::Cluster(servers) => &servers.cluster,
            _ => panic!("the fault is one of clusters"),
        }
    }

    fn quorum(&self) -> &'a QuorumServers {
        match self.deployment {
            Deployment::Quorum(quorum) => quorum,
            _ => panic!("the fault is one of quorums"),
        }
    }

    /// Returns a key in use.
    fn key(&mut self) -> String {
        let keys: Vec<_> = keys().collect();
        keys[self.random.below(keys.len())].clone()
    }

    fn failover(&mut self, kind: Failover) {
        let (cluster, key) = (self.cluster(), self.key());
        let replica = cluster.replica_of(cluster.owner_of(&key));
        cluster.failover(&key, replica, kind);
    }

    /// Kills servers of the quorum, and starts them without their data. They are in quarantine then.
    fn restart_empty(&mut self, count: usize) {
        let servers = self.some_servers(count);
        for server in &servers {
            server.kill9();
        }
        self.rest(0, 800);
        for server in servers {
            server.restart();
        }
    }

    fn stop_servers(&mut self, count: usize) {
        let servers = self.some_servers(count);
        for server in &servers {
            server.stop();
        }
        self.rest(300, 2_000);
        for server in servers {
            server.cont();
        }
    }

    fn some_servers(&mut self, count: usize) -> Vec<&'a RedisServer> {
        let quorum = self.quorum();
        let mut servers: Vec<_> = quorum.servers.iter().collect();
        self.random.shuffle(&mut servers);
        servers.truncate(count);
        servers
    }

    /// One clock jumps, and later returns. A clock that jumps forward, or returns from the past, ends leases: a lock
    /// that exactly a majority held may then have two holders.
    fn move_clock(&mut self, by_us: i64) {
        let at = self.random.below(2);
        let (clock, skew) = (&self.quorum().clocks[at], SKEWS_US[at]);
        clock.run_ahead_by(skew + by_us);
        self.rest(1_000, 2_000);
        clock.run_ahead_by(skew);
    }
}
