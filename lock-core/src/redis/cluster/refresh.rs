//! Reads the slot map and the epochs of the nodes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::super::deployment::NodeAddress;
use super::super::dial::stagger;
use super::super::errors::of_several;
use super::super::handshake::{check_role, unknown_epoch};
use super::super::membership::{Shared, ids_of};
use super::super::node::EpochReply;
use super::call::connected;
use super::map;
use super::names::NodeNames;
use super::nodes::{ClusterNode, ClusterNodes, Judgement, MAX_NODES, Told};
use crate::error::{BackendErrorKind, LockError};
use crate::sync::assert_no_mutex_held;
use crate::telemetry::LockEvent;
use lock_protocol::backoff::Jitter;
use lock_protocol::clock::{Clock, Deadline, Moment};
use lock_protocol::codec::accepted;
use lock_protocol::identity::{Info, Role, time_of};
use lock_protocol::op::Refusal;
use lock_protocol::redirect::Destination;
use lock_protocol::resp::{CommandBuf, Replies, Reply};
use lock_protocol::route::ClusterView;

/// How long a node may take to reply over an open connection.
const REPLY: Duration = Duration::from_millis(300);
/// How long one node of the URL has at most before the next one is asked as well.
const STAGGER: Duration = Duration::from_millis(50);
/// The shortest pause between two readings of the map.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The pause between two readings while no node of the cluster replies.
const PAUSE_IF_SILENT: Duration = Duration::from_secs(1);
/// How long no node of the cluster was connected when another cluster at an address of the URL takes its place.
const GONE_AFTER: Duration = Duration::from_secs(10);
/// The pause between two readings of the epochs while the manager is in use.
const EPOCH_PAUSE: Duration = Duration::from_secs(1);
/// The pause between two searches for idle connections.
const IDLE_SEARCH: Duration = Duration::from_secs(60);
/// A call that gives out a token asks for the epoch if that was done longer ago.
const EPOCH_AGE: Duration = Duration::from_secs(2);

/// What the nodes have told, if none has told a map that is used at once.
#[derive(Default)]
struct Round {
    /// The best map that is not older than the one in use.
    best: Option<(Shared, Told, NodeAddress)>,
    /// The best of the older ones.
    older: Option<(Told, NodeAddress)>,
    tellers_of_older: HashSet<NodeAddress>,
}

impl Round {
    fn add(&mut self, shared: Shared, told: Told, teller: NodeAddress) {
        let is_better = self.best.as_ref().is_none_or(|(before, best, _)| {
            shared > *before || (shared == *before && told.view.knows_more_than(&best.view))
        });
        if is_better {
            self.best = Some((shared, told, teller));
        }
    }

    fn add_older(&mut self, told: Told, teller: NodeAddress) {
        self.tellers_of_older.insert(teller.clone());
        let best = self.older.as_ref();
        if best.is_none_or(|(best, _)| told.view.knows_more_than(&best.view)) {
            self.older = Some((told, teller));
        }
    }

    /// Returns whether a map has most of the nodes in use, so that its node certainly belongs to the cluster.
    fn has_members(&self) -> bool {
        let best = self.best.as_ref();
        best.is_some_and(|(shared, ..)| *shared == Shared::Most) || self.older.is_some()
    }

    /// Returns the map to use and who told it. If no node knows the epoch in use any more, because the only one that
    /// knew it is lost, an older map is used that most of its owners tell. If the cluster `is_gone`, a map that has few
    /// of its nodes is used.
    fn best(self, is_gone: bool) -> Option<(Told, NodeAddress)> {
        let may_be_foreign = is_gone && self.older.is_none();
        if let Some((shared, told, teller)) = self.best
            && (shared == Shared::Most || may_be_foreign)
        {
            return Some((told, teller));
        }
        let (told, teller) = self.older?;
        let owners = told.view.map.owners();
        let (of_owners, all) = owners.fold((0, 0), |(told, all), owner| {
            (
                told + usize::from(self.tellers_of_older.contains(owner)),
                all + 1,
            )
        });
        (2 * of_owners > all).then_some((told, teller))
    }
}

/// How the first slot map is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstUse {
    /// While the manager is made: an error of a node comes at once.
    Connects,
    /// By a call, which waits for a connection as all calls do.
    Waits,
}

impl ClusterNodes {
    /// Reads the first slot map, unless another call has read it. No call can go to a node before.
    pub(super) async fn know_map(self: &Arc<Self>, deadline: Deadline) -> Result<(), LockError> {
        if !self.membership.is_new() {
            return Ok(());
        }
        // In a task: a caller that isn't polled for a while would keep the mutex, and with it all other callers. The set
        // ends the task with the caller.
        let (mut reading, nodes) = (JoinSet::new(), Arc::clone(self));
        assert_no_mutex_held();
        reading.spawn(async move { nodes.read_first_map(deadline).await });
        match reading.join_next().await {
            Some(Ok(read)) => read,
            Some(Err(_ended)) => Err(LockError::NoRuntime),
            None => Err(LockError::unsent()),
        }
    }

    /// As [`know_map`](Self::know_map), after the reads of other callers.
    async fn read_first_map(self: &Arc<Self>, deadline: Deadline) -> Result<(), LockError> {
        let reading = tokio::time::timeout(deadline.left(), self.map_reading.lock()).await;
        let Ok(_reading) = reading else {
            let first = self.seeds().into_iter().next();
            let no_answer = first.map(|seed| seed.server.client.pool.connector.no_answer());
            return Err(no_answer.unwrap_or_else(LockError::unsent));
        };
        if !self.membership.is_new() {
            return Ok(());
        }
        self.discover(FirstUse::Waits, deadline).await
    }

    /// Reads the first slot map from the first node that tells it. The nodes are asked 50 ms apart, so that a node that is
    /// silent or unusable doesn't hold up the others.
    pub(super) async fn discover(
        self: &Arc<Self>,
        first_use: FirstUse,
        deadline: Deadline,
    ) -> Result<(), LockError> {
        let mut candidates = self.candidates().into_iter();
        let mut reading = JoinSet::new();
        let mut failures = Vec::new();
        let mut silent = Vec::new();
        loop {
            if let Some(address) = candidates.next() {
                let (nodes, node) = (Arc::clone(self), self.node(&address));
                silent.push(Arc::clone(&node));
                assert_no_mutex_held();
                reading.spawn(async move {
                    let pool = &node.server.client.pool;
                    let connected = match first_use {
                        FirstUse::Connects => pool.first(deadline.left()).await,
                        FirstUse::Waits => pool.for_current_runtime(deadline).await,
                    };
                    let read = match connected {
                        Ok(_connection) => nodes.read_map(&node, REPLY).await,
                        Err(error) => Err(error),
                    };
                    (node, read)
                });
            }
            let pause = match candidates.len() {
                0 => deadline.left(),
                left => stagger(STAGGER, left, deadline),
            };
            match tokio::time::timeout(pause, reading.join_next()).await {
                Ok(Some(Ok((node, Ok(told))))) => {
                    self.replace_map(told, &node.address);
                    self.report_unusable(&failures);
                    return Ok(());
                }
                Ok(Some(Ok((node, Err(error))))) => {
                    silent.retain(|other| !Arc::ptr_eq(other, &node));
                    failures.push((node, error));
                }
                Ok(Some(Err(_ended))) => return Err(LockError::NoRuntime),
                // All have failed.
                Ok(None) => break,
                Err(_elapsed) if deadline.left().is_zero() => break,
                Err(_elapsed) => {}
            }
        }
        let no_answer = |node: Arc<ClusterNode>| {
            let error = node.server.client.pool.connector.no_answer();
            (node, error)
        };
        failures.extend(silent.into_iter().map(no_answer));
        // Each of the texts names its node.
        let failures = failures
            .into_iter()
            .map(|(_, error)| (String::new(), error));
        let error = of_several("no node of the cluster can be used", failures.collect());
        Err(error.unwrap_or_else(|| {
            LockError::backend(
                BackendErrorKind::TimedOut,
                "no node of the cluster replied in time",
            )
        }))
    }

    /// Reports the nodes of the URL that an operator has to fix, although others can be used.
    fn report_unusable(&self, failures: &[(Arc<ClusterNode>, LockError)]) {
        for (node, error) in failures.iter().filter(|(_, error)| !error.is_retryable()) {
            self.reporter.emit(&LockEvent::ServerRestricted {
                server: &node.server_node().server,
                command: "CLUSTER SLOTS",
                effect: "this node of the URL is not used",
                error: &error.to_string(),
            });
        }
    }

    /// Reads the map from one node, which must own slots or know who does.
    async fn read_map(&self, node: &ClusterNode, limit: Duration) -> Result<Told, LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let pool = &node.server.client.pool;
        let connection = pool.for_current_runtime(deadline).await?;
        let questions = |out: &mut CommandBuf<'_>| {
            // First, so that the map is not older than the epoch.
            out.command("CLUSTER").arg("INFO");
            out.command("CLUSTER").arg("SLOTS");
            out.command("CLUSTER").arg("MYID");
        };
        let replies = connection.ask(questions, 3, deadline.left()).await?;
        let mut replies = Replies::new(&replies);
        let info = replies.next().and_then(Info::read);
        let reply = accepted(replies.next()).map_err(|refusal| {
            let text = format!(
                "the node at {} does not tell the slots of the cluster",
                node.address
            );
            LockError::refused_as(text, &refusal)
        })?;
        let own_id = replies.next().and_then(Reply::word);
        let map = map::read(reply, &node.address, self.has_tls()).unwrap_or_default();
        match map.owners().count() {
            0 => Err(LockError::backend(
                BackendErrorKind::ClusterDown,
                format!("the node at {} knows no slot of the cluster", node.address),
            )),
            1..=MAX_NODES => Ok(Told {
                view: ClusterView {
                    map,
                    epoch: info.and_then(Info::current_epoch),
                },
                names: self.names_of(reply, node),
                ids: if self.membership.is_known() {
                    ids_of(reply)
                } else {
                    map::ids_by(own_id, reply)
                },
                is_by_member: own_id.is_some_and(|own_id| self.membership.has(own_id)),
            }),
            owners => Err(LockError::backend(
                BackendErrorKind::Unsupported,
                format!(
                    "the node at {} names {owners} nodes, and a cluster has at most {MAX_NODES}",
                    node.address
                ),
            )),
        }
    }

    fn names_of(&self, reply: Reply<'_>, node: &ClusterNode) -> NodeNames {
        if self.has_tls() {
            NodeNames::from_slots(reply, &node.address)
        } else {
            NodeNames::default()
        }
    }

    /// Returns the address of the node that a reply names. With TLS, the reply may have a number, for which no
    /// certificate is valid. Then the node which replied is asked for the name.
    pub(super) async fn resolve(
        &self,
        at: &ClusterNode,
        to: &Destination,
        limit: Duration,
    ) -> NodeAddress {
        let address = Self::address_of(&at.address, to);
        let is_here = matches!(to.host.as_str(), "" | "?");
        if is_here || !self.has_tls() {
            return address;
        }
        if let Some(name) = self.name_of(&address) {
            return name;
        }
        // Without a name, the certificate may have the number.
        let limit = limit.min(REPLY);
        let _known = tokio::time::timeout(limit, self.read_names(at, &address, limit)).await;
        self.name_of(&address).unwrap_or(address)
    }

    /// Asks a node for the names of all nodes, unless another caller has asked meanwhile.
    async fn read_names(
        &self,
        at: &ClusterNode,
        wanted: &NodeAddress,
        limit: Duration,
    ) -> Result<(), LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let _reading = self.names_reading.lock().await;
        if self.name_of(wanted).is_some() {
            return Ok(());
        }
        let pool = &at.server.client.pool;
        let connection = pool.for_current_runtime(deadline).await?;
        let questions = |out: &mut CommandBuf<'_>| {
            out.command("CLUSTER").arg("SLOTS");
            // A node without slots is in this reply only.
            out.command("CLUSTER").arg("NODES");
        };
        let replies = connection.ask(questions, 2, deadline.left()).await?;
        let mut replies = Replies::new(&replies);
        let (slots, lines) = (replies.next(), replies.next());
        let lines = lines.and_then(Info::read).map_or("", Info::as_str);
        let mut names = NodeNames::from_lines(lines);
        if let Some(slots) = slots {
            names.extend(self.names_of(slots, at));
        }
        self.add_names(names);
        Ok(())
    }

    /// Keeps the map and the epochs up to date for as long as it is polled.
    pub(super) async fn keep_fresh(self: Arc<Self>) {
        let mut jitter = Jitter::from_os();
        let mut silent_since: Option<Moment> = None;
        loop {
            let pause = if silent_since.is_some() {
                PAUSE_IF_SILENT
            } else {
                LONGEST_PAUSE
            };
            let _wanted_or_due = tokio::time::timeout(pause, self.wanted.notified()).await;
            let mut candidates = self.candidates();
            // A node that does not reply costs time. The others are asked in any order, even those without a connection: the
            // node in use may be cut off from the cluster.
            candidates.sort_by_cached_key(|address| {
                let is_down = self.node(address).server.client.pool.seems_down();
                (is_down, jitter.anywhere_in(LONGEST_PAUSE))
            });
            let now = Clock::System.now();
            let is_gone = silent_since.is_some_and(|since| now.since(since) >= GONE_AFTER);
            if self.refresh(candidates, is_gone).await {
                silent_since = None;
            } else if is_gone && !self.is_connected() {
                self.begin_anew();
            } else {
                silent_since.get_or_insert(now);
            }
            self.read_epochs().await;
            tokio::time::sleep(SHORTEST_PAUSE).await;
        }
    }

    /// Asks one node after the other, until one tells a map that replaces the one in use. `is_gone` says that no node of
    /// the cluster has told its map for a long time. Returns whether one has told it now.
    async fn refresh(&self, candidates: Vec<NodeAddress>, is_gone: bool) -> bool {
        let mut round = Round::default();
        for address in candidates {
            let Ok(told) = self.read_map(&self.node(&address), REPLY).await else {
                continue;
            };
            match self.judge(&told) {
                Judgement::Use => {
                    self.replace_map(told, &address);
                    return true;
                }
                Judgement::AskOthers(shared) => round.add(shared, told, address),
                Judgement::Older => round.add_older(told, address),
                Judgement::Foreign => self.leave(&address),
            }
        }
        let has_members = round.has_members();
        if let Some((told, teller)) = round.best(is_gone) {
            self.replace_map(told, &teller);
        }
        has_members
    }

    /// Closes connections that no key needs, for as long as it is polled.
    pub(super) async fn close_idle(&self) {
        loop {
            tokio::time::sleep(IDLE_SEARCH).await;
            for node in self.known() {
                for server in [&node.server, &node.asking] {
                    server.close_idle();
                }
            }
        }
    }

    /// Keeps the epochs of a manager in use up to date for as long as it is polled, so that its calls seldom
    /// have to ask.
    pub(super) async fn keep_epochs(&self) {
        loop {
            let used = self.used.notified();
            if self.is_in_use() {
                self.read_epochs().await;
                tokio::time::sleep(EPOCH_PAUSE).await;
            } else {
                used.await;
            }
        }
    }

    /// Reads the epoch of each node in use from that node itself: a primary that was replaced must keep its own. The others
    /// are asked when a key needs them.
    async fn read_epochs(&self) {
        let mut asked = JoinSet::new();
        let owners = self.owners().into_iter();
        for node in owners.filter(|node| node.server.client.pool.is_any_connected()) {
            asked.spawn(async move {
                // Without a reply, the next reading asks again.
                let _read = read_epoch(&node, REPLY).await;
            });
        }
        while asked.join_next().await.is_some() {}
    }
}

impl ClusterNode {
    /// Makes sure that the tokens of this node lie ahead by its epoch. A node that was replaced, and comes back as
    /// the primary of a later epoch, may lack the last steps of its counters. An older connection does not show
    /// that.
    pub(super) async fn know_epoch(&self, limit: Duration) -> Result<(), LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        while !self.server_node().knows_epoch(EPOCH_AGE) {
            // One caller asks for all.
            let asking = tokio::time::timeout(deadline.left(), self.epoch_reading.lock()).await;
            let _reading = asking.map_err(|_elapsed| {
                LockError::backend(
                    BackendErrorKind::TimedOut,
                    format!("the node at {} does not tell its epoch", self.address),
                )
            })?;
            if !self.server_node().knows_epoch(EPOCH_AGE) {
                read_epoch(self, deadline.left()).await?;
            }
        }
        Ok(())
    }
}

/// A replica has the epoch of its primary, which is not its own if it takes over. So the role comes first.
async fn read_epoch(node: &ClusterNode, limit: Duration) -> Result<(), LockError> {
    let deadline = Deadline::after(Clock::System, limit);
    // The node may have died while another caller asked it.
    let connection = connected(&node.server, deadline).await?;
    let questions = |out: &mut CommandBuf<'_>| {
        out.command("ROLE");
        out.command("TIME");
        out.command("CLUSTER").arg("INFO");
    };
    let asked = Clock::System.now();
    let replies = connection.ask(questions, 3, deadline.left()).await?;
    let mut replies = Replies::new(&replies);
    let mut next = || accepted(replies.next());
    let (role, time, info) = (next(), next(), next());
    let server = node.server_node();
    if let Ok(role) = role
        && let Some(role) = Role::of_reply(role)
        && let Err(error) = check_role(&server, role)
    {
        server.doubt_epoch();
        return Err(error);
    }
    let server_us = time.and_then(|time| time_of(time).ok_or_else(Refusal::unreadable));
    let server_us = server_us.map_err(|refusal| {
        let text = format!("the lock server at {} rejects commands", node.address);
        LockError::refused_as(text, &refusal)
    })?;
    let epoch = match info {
        Ok(info) => Info::read(info).and_then(Info::my_epoch),
        // A server that never tells it has the promise of a single server, and was reported at the connection.
        Err(refusal) if refusal.is_of_command() => None,
        Err(refusal) => return Err(unknown_epoch(&server, &refusal)),
    };
    let epoch = epoch.unwrap_or_default();
    let reply = EpochReply {
        asked,
        lead_us: node.server.client.pool.connector.config.lead_us(epoch),
        server_us,
    };
    server.epoch_told(&reply);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_protocol::route::SlotMap;

    fn at(host: &str) -> NodeAddress {
        NodeAddress::Tcp(host.into(), 7000)
    }

    /// A map with a slot for each of these owners.
    fn told(epoch: u64, owners: &[&str]) -> Told {
        let slots = (0..).zip(owners);
        let map = SlotMap::from_ranges(slots.map(|(slot, owner)| (slot, slot, at(owner))));
        Told {
            view: ClusterView {
                map,
                epoch: Some(epoch),
            },
            names: NodeNames::default(),
            ids: HashSet::new(),
            is_by_member: true,
        }
    }

    fn best(round: Round) -> Option<(Option<u64>, usize)> {
        let (told, _teller) = round.best(false)?;
        Some((told.view.epoch, told.view.map.owned()))
    }

    #[test]
    fn map_with_most_nodes_of_the_cluster_is_better_than_a_later_one_of_others() {
        let mut round = Round::default();
        round.add(Shared::Few, told(9, &["x", "y", "z"]), at("x"));
        assert!(!round.has_members());
        round.add(Shared::Most, told(7, &["a"]), at("a"));
        round.add(Shared::Most, told(7, &["a", "b"]), at("b"));
        round.add(Shared::Few, told(9, &["x", "y", "z"]), at("y"));
        assert!(round.has_members());
        assert_eq!(best(round), Some((Some(7), 2)));
    }

    #[test]
    fn map_with_few_nodes_of_the_cluster_is_used_once_the_others_are_gone() {
        let few = || {
            let mut round = Round::default();
            round.add(Shared::Few, told(9, &["x", "y"]), at("x"));
            round
        };
        assert!(few().best(false).is_none());
        assert!(few().best(true).is_some());
        // A node of the cluster replies, although its map is old.
        for is_gone in [false, true] {
            let mut round = few();
            round.add_older(told(6, &["a", "b", "c"]), at("a"));
            assert!(round.best(is_gone).is_none());
        }
    }

    #[test]
    fn older_map_is_used_if_most_of_its_owners_tell_it() {
        let tells = |tellers: &[&str]| {
            let mut round = Round::default();
            for teller in tellers {
                round.add_older(told(6, &["a", "b", "c", "d"]), at(teller));
            }
            assert!(round.has_members());
            best(round)
        };
        assert_eq!(tells(&["a", "b", "x", "y"]), None);
        assert_eq!(tells(&["a", "b", "c"]), Some((Some(6), 4)));
        // One node that knows the epoch is enough.
        let mut round = Round::default();
        for teller in ["a", "b", "c", "d"] {
            round.add_older(told(6, &["a", "b", "c", "d"]), at(teller));
        }
        round.add(Shared::Most, told(7, &["e"]), at("e"));
        assert_eq!(best(round), Some((Some(7), 1)));
    }
}
