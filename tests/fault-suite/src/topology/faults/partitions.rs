//! Servers that some of the others, or some of the clients, do not reach.

use std::thread::sleep;

use test_support::Proxy;
use test_support::cluster::Failover;

use super::FaultContext;
use crate::nemesis::ENDLESS;

/// How long clients do not reach a node that was cut off, in milliseconds.
const SILENT: &str = "1500";

/// The primary is on one side of a partition, with half of the processes. The Sentinels and the replicas are on
/// the other side, and promote a replica. Both primaries give out locks until the partition ends.
pub(super) fn primary_isolated(context: &mut FaultContext<'_>) {
    let servers = context.sentinel();
    let service = &servers.service;
    let old = service.primary();
    for proxy in &servers.proxies {
        proxy.black_hole();
    }
    service.isolate(old);
    service.wait_for_switch(old.port());
    sleep(context.random.millis(500, 2_000));
    for proxy in &servers.proxies {
        proxy.forward();
    }
    service.rejoin(old);
}

/// The replica takes over without the writes of the last moment.
pub(super) fn node_killed_unreplicated(context: &mut FaultContext<'_>) {
    let (cluster, key) = (context.cluster(), context.key());
    let old = cluster.owner_of(&key);
    let replica = cluster.replica_of(old);
    cluster.cut_replication(old);
    sleep(context.random.millis(50, 400));
    old.kill9();
    cluster.wait_for_owner(&key, replica);
    old.restart();
}

/// Neither the replica nor the clients reach the node. The replica takes over without the writes of the last
/// moment, and the node executes the commands of its clients when they reach it again.
pub(super) fn node_isolated(context: &mut FaultContext<'_>) {
    let (cluster, key) = (context.cluster(), context.key());
    let old = cluster.owner_of(&key);
    let replica = cluster.replica_of(old);
    cluster.cut_replication(old);
    sleep(context.random.millis(50, 400));
    let paused = old.cli(&["CLIENT", "PAUSE", SILENT, "ALL"]);
    assert!(paused.error().is_none(), "{paused:?}");
    cluster.failover(&key, replica, Failover::Takeover);
    // The node replies when the pause ends.
    cluster.restore_replication(old);
}

/// Each half of the processes does not reach this many servers of a quorum.
pub(super) fn cut(context: &mut FaultContext<'_>, counts: [usize; 2]) {
    let quorum = context.quorum();
    let is_silent = context.random.below(2) == 0;
    for (proxies, count) in quorum.proxies.iter().zip(counts) {
        let mut chosen: Vec<_> = proxies.iter().collect();
        context.random.shuffle(&mut chosen);
        for proxy in &chosen[..count] {
            if is_silent {
                proxy.black_hole();
            } else {
                proxy.refuse();
                proxy.cut_all();
            }
        }
    }
    context.rest(1_000, 2_000);
    for proxy in quorum.proxies.iter().flatten() {
        proxy.forward();
    }
}

/// Half of the processes get endless replies from all Sentinels.
pub(super) fn sentinels_endless(context: &mut FaultContext<'_>) {
    let proxies = &context.sentinel().proxies;
    while context.goes_on() {
        for proxy in proxies {
            let (begin, part) = *context.random.pick(&ENDLESS);
            proxy.answer_endlessly(begin, part);
            proxy.cut_all();
        }
        context.rest(300, 1_500);
        for proxy in proxies {
            proxy.forward();
        }
        context.rest(50, 300);
    }
}

/// The Sentinels' replies to half of the processes arrive a byte at a time.
pub(super) fn sentinels_dripping(context: &mut FaultContext<'_>) {
    let proxies = &context.sentinel().proxies;
    for proxy in proxies {
        proxy.drip(context.random.millis(0, 20));
        proxy.cut_all();
    }
    context.rest(1_000, 2_000);
    for proxy in proxies {
        proxy.forward();
    }
}

/// Two servers of a quorum send endless replies to half of the processes each.
pub(super) fn replies_endless(context: &mut FaultContext<'_>) {
    at_two_servers(context, |context, proxy| {
        let (begin, part) = *context.random.pick(&ENDLESS);
        proxy.answer_endlessly(begin, part);
    });
}

/// The replies of two servers of a quorum arrive a byte at a time, at each half of the processes.
pub(super) fn replies_dripping(context: &mut FaultContext<'_>) {
    at_two_servers(context, |context, proxy| {
        proxy.drip(context.random.millis(0, 30));
    });
}

fn at_two_servers(context: &mut FaultContext<'_>, act: impl Fn(&mut FaultContext<'_>, &Proxy)) {
    let quorum = context.quorum();
    for proxies in &quorum.proxies {
        let mut chosen: Vec<_> = proxies.iter().collect();
        context.random.shuffle(&mut chosen);
        for proxy in &chosen[..2] {
            act(context, proxy);
        }
    }
    context.rest(1_000, 2_000);
    for proxy in quorum.proxies.iter().flatten() {
        proxy.forward();
    }
}
