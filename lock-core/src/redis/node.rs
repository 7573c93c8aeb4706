//! One server of a deployment: what its connections have found out, and which of them may be used.
//!
//! # An address with several servers
//!
//! A load balancer may lead each connection to another primary, so that a lock that is held at one of them is free at
//! another. So the connections stay with the process that was met first for as long as one of them is open and the process
//! says that it is a primary ([`Node::may_admit`]).
//!
//! Two proxies in front of *one* server look the same if each of them answers `INFO` itself with a run id of its own. Nobody
//! can tell them from two primaries, so the same rule holds for them: connections through the second proxy are closed and
//! made again until one leads through the first. That costs a few more dials but no lock. The dials are bounded by the
//! pool's back-off, which grows to half a second and begins anew only after a connection has worked.

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::task::JoinSet;

use super::deployment::NodeAddress;
#[cfg(feature = "cluster")]
use super::membership::Membership;
use crate::error::{BackendErrorKind, LockError};
use crate::store::Boxed;
use crate::sync::{Mutex, assert_no_mutex_held};
use crate::telemetry::{LockEvent, Reporter, ServerAddress};
use lock_protocol::clock::{Clock, Moment};
use lock_protocol::clock_sync::UNKNOWN_RUN_ID;

/// One server, as connections see it.
pub(super) struct Node {
    pub(super) address: NodeAddress,
    shown: Mutex<Shown>,
    /// The address, for telemetry.
    pub(super) server: Arc<ServerAddress>,
    /// Who announced the address; `None` if the URL has it.
    announced: Option<&'static str>,
    /// Other addresses that the same server has announced.
    pub(super) aliases: Vec<NodeAddress>,
    /// Grows when another server is the primary. Connections of an earlier generation are not used.
    pub(super) generation: u64,
    /// The configuration epoch of the Sentinels; 0 without Sentinels.
    pub(super) epoch: u64,
    /// What the server told of its epoch.
    told: ToldEpoch,
    /// The server said that it is a replica.
    was_replica: AtomicBool,
    resp2: Resp2,
    /// The process of the connections in use.
    run_id: AtomicU64,
    /// The address of the last connection in use; `None` before the first one, and for a Unix socket.
    last_peer: Mutex<Option<IpAddr>>,
    /// Held from the decision about a new connection until it is registered.
    pub(super) admission: tokio::sync::Mutex<()>,
    connections: Mutex<Vec<Weak<dyn Witness>>>,
    /// When a connection ended last, in nanoseconds; zero if none has.
    ended_at: AtomicU64,
    /// It was reported that the address leads to a server that isn't used.
    is_other_known: AtomicBool,
    /// The cluster to which it belongs.
    #[cfg(feature = "cluster")]
    pub(super) membership: Option<Arc<Membership>>,
}

/// How error texts show an address.
struct Shown {
    text: Arc<str>,
    /// This client reaches the server at another address than the announced one.
    is_mapped: bool,
}

#[cfg(feature = "cluster")]
const ANNOUNCED_BY_CLUSTER: &str = "the cluster announced this address; if this client reaches the server at another one, set \
     `address_map`";
const ANNOUNCED_BY_SENTINELS: &str = "the Sentinels announced this address; if this client reaches the server at another one, set \
     `address_map`";
const MAPPED: &str = "`address_map` leads to this address";

/// Whether connections speak RESP2, because the server has refused `HELLO`.
#[derive(Debug, Default)]
struct Resp2 {
    /// The server has accepted RESP3 before.
    knows_resp3: AtomicBool,
    /// When RESP3 is tried again, in nanoseconds of the system's clock; 0 if it was never refused.
    until: AtomicU64,
    /// The server process that has refused it.
    run_id: AtomicU64,
    /// How often this process has refused it in words that nobody knows, or by ending the connection.
    doubts: AtomicU32,
}

/// How long connections speak RESP2 before RESP3 is tried again.
const RESP2_FOR: Duration = Duration::from_secs(600);
/// How long they do so at first, if the server may have refused for another reason. The time doubles each time.
const RESP2_AT_FIRST: Duration = Duration::from_secs(5);

/// A connection, as its node sees it.
pub(super) trait Witness: Send + Sync {
    fn is_open(&self) -> bool;

    /// Returns the run id of the process to which it leads.
    fn run_id(&self) -> u64;

    /// Returns the address to which it leads; `None` for a Unix socket.
    fn peer(&self) -> Option<IpAddr>;

    /// Asks the server whether it has become a replica, and takes a server that doesn't tell its role for a primary.
    /// Returns `None` if no reply comes in time.
    fn is_replica(&self, limit: Duration) -> Boxed<'_, Option<bool>>;
}

/// What the connections say of the process of a server.
enum Word {
    Serves,
    /// It has ended, or is a replica by now.
    ServesNoMore,
    /// No reply came, and a connection is open.
    Silence,
}

impl Node {
    pub(super) fn new(address: NodeAddress) -> Self {
        Self {
            shown: Mutex::new(Shown {
                text: address.to_string().into(),
                is_mapped: false,
            }),
            server: Arc::new(server_address(&address)),
            address,
            announced: None,
            aliases: Vec::new(),
            generation: 0,
            epoch: 0,
            told: ToldEpoch::default(),
            was_replica: AtomicBool::new(false),
            resp2: Resp2::default(),
            run_id: AtomicU64::new(UNKNOWN_RUN_ID),
            last_peer: Mutex::default(),
            admission: tokio::sync::Mutex::default(),
            connections: Mutex::default(),
            ended_at: AtomicU64::new(0),
            is_other_known: AtomicBool::new(false),
            #[cfg(feature = "cluster")]
            membership: None,
        }
    }

    /// A node of a cluster.
    #[cfg(feature = "cluster")]
    pub(super) fn in_cluster(
        address: NodeAddress,
        aliases: Vec<NodeAddress>,
        membership: &Arc<Membership>,
    ) -> Self {
        Self {
            announced: (!membership.is_seed(&address)).then_some(ANNOUNCED_BY_CLUSTER),
            aliases,
            membership: Some(Arc::clone(membership)),
            ..Self::new(address)
        }
    }

    /// The primary of a later generation.
    pub(super) fn of_generation(address: NodeAddress, generation: u64, epoch: u64) -> Self {
        Self {
            generation,
            epoch,
            ..Self::new(address)
        }
    }

    /// The server to which the name leads after this one.
    pub(super) fn moved(&self) -> Self {
        let moved = Self::of_generation(self.address.clone(), self.generation + 1, self.epoch);
        // An open connection may yet hear from the former server.
        if self.open_connections().next().is_none() {
            let ended_at = self.ended_at.load(Ordering::Acquire);
            moved.ended_at.store(ended_at, Ordering::Release);
        }
        moved
    }

    /// The server whose address the Sentinels have told.
    pub(super) fn announced_by_sentinels(self) -> Self {
        Self {
            announced: Some(ANNOUNCED_BY_SENTINELS),
            ..self
        }
    }

    /// Returns whether other servers have told the address.
    pub(super) fn is_announced(&self) -> bool {
        self.announced.is_some()
    }

    /// Returns the address, for error texts.
    pub(super) fn text(&self) -> Arc<str> {
        Arc::clone(&self.shown.lock().text)
    }

    /// Records at which address this client reaches the server; `None` for the announced one.
    pub(super) fn record_reached(&self, mapped: Option<&NodeAddress>) {
        let text = match mapped {
            Some(mapped) => format!("{mapped} (announced as {})", self.address),
            None => self.address.to_string(),
        };
        let shown = Shown {
            text: text.into(),
            is_mapped: mapped.is_some(),
        };
        *self.shown.lock() = shown;
    }

    /// Adds who announced the address to the error of a server that can't be reached.
    pub(super) fn explained(&self, error: LockError) -> LockError {
        use BackendErrorKind::{TimedOut, Tls, Unreachable};
        let Some(announced) = self.announced else {
            return error;
        };
        match error {
            LockError::Backend(known) if matches!(known.kind(), TimedOut | Tls | Unreachable) => {
                let is_mapped = self.shown.lock().is_mapped;
                let detail = if is_mapped { MAPPED } else { announced };
                LockError::Backend(known).with_detail(detail)
            }
            error => error,
        }
    }

    /// Returns whether a connection leads to the server process that is in use.
    pub(super) fn is_process(&self, run_id: u64) -> bool {
        run_id == UNKNOWN_RUN_ID || run_id == self.run_id.load(Ordering::Acquire)
    }

    /// Returns whether the connections in use certainly lead to this server process.
    pub(super) fn is_known_process(&self, run_id: u64) -> bool {
        run_id != UNKNOWN_RUN_ID && self.is_process(run_id)
    }

    /// Records a connection for commands.
    pub(super) fn registers(&self, connection: Weak<dyn Witness>) {
        let mut connections = self.connections.lock();
        connections.retain(|known| known.strong_count() > 0);
        connections.push(connection);
    }

    fn open_connections(&self) -> impl Iterator<Item = Arc<dyn Witness>> + use<> {
        let connections: Vec<_> = {
            let connections = self.connections.lock();
            connections.iter().filter_map(Weak::upgrade).collect()
        };
        connections.into_iter().filter(|it| it.is_open())
    }

    fn open_connections_to(&self, run_id: u64) -> impl Iterator<Item = Arc<dyn Witness>> + use<> {
        let is_there = move |it: &Arc<dyn Witness>| it.run_id() == run_id;
        self.open_connections().filter(is_there)
    }

    /// Returns the addresses to which the open connections lead.
    pub(super) fn peers(&self) -> Vec<IpAddr> {
        self.open_connections().filter_map(|it| it.peer()).collect()
    }

    /// Returns the address of the last connection in use.
    pub(super) fn last_peer(&self) -> Option<IpAddr> {
        *self.last_peer.lock()
    }

    /// Returns whether a new connection that may be used leads to another server than the last one, at another address. A
    /// server process that nobody can tell from the last one is the same while connections are open.
    pub(super) fn is_elsewhere(&self, run_id: u64, peer: Option<IpAddr>) -> bool {
        let Some(last_peer) = self.last_peer() else {
            return false;
        };
        let known = self.run_id.load(Ordering::Acquire);
        let is_other = if known == UNKNOWN_RUN_ID || run_id == UNKNOWN_RUN_ID {
            self.open_connections().next().is_none()
        } else {
            known != run_id
        };
        is_other && peer.is_some_and(|peer| peer != last_peer)
    }

    /// Records the server process and the address of a new connection that is used. The caller holds
    /// [`admission`](Self::admission).
    pub(super) fn uses(&self, run_id: u64, peer: Option<IpAddr>) {
        if run_id != UNKNOWN_RUN_ID {
            self.run_id.store(run_id, Ordering::Release);
        }
        *self.last_peer.lock() = peer;
    }

    /// Returns an error if a new connection may not be used. A connection to another server process may be used only once
    /// the known process has stopped serving, because it restarted or was replaced. Otherwise the address leads to
    /// several servers, and one of them would grant locks that are held at another. That is reported once, to a reporter
    /// if there is one.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub(super) async fn may_admit(
        &self,
        run_id: u64,
        limit: Duration,
        reporter: Option<&Reporter>,
    ) -> Result<(), LockError> {
        if run_id == UNKNOWN_RUN_ID {
            return Ok(());
        }
        let known = self.run_id.load(Ordering::Acquire);
        if known != UNKNOWN_RUN_ID && known != run_id {
            match self.word_of(known, limit).await {
                Word::ServesNoMore => {}
                Word::Serves => {
                    if let Some(reporter) = reporter {
                        self.reports_several(reporter);
                    }
                    return Err(self.is_another_server());
                }
                Word::Silence => return Err(self.is_another_server()),
            }
        }
        Ok(())
    }

    fn reports_several(&self, reporter: &Reporter) {
        if self.is_other_known.swap(true, Ordering::AcqRel) {
            return;
        }
        reporter.emit(&LockEvent::ServerRestricted {
            server: &self.server,
            command: "INFO",
            effect: "connections to the others are not used, because their locks are not those of the first one",
            error: "this address leads to several servers",
        });
    }

    /// Returns the error for a server that doesn't belong to the cluster in use, and reports it once.
    #[cfg(feature = "cluster")]
    pub(super) fn is_foreign(&self, reporter: &Reporter) -> LockError {
        if !self.is_other_known.swap(true, Ordering::AcqRel) {
            reporter.emit(&LockEvent::ServerRestricted {
                server: &self.server,
                command: "CLUSTER MYID",
                effect: "it is not used, because its locks are not those of this cluster",
                error: "the server at the address of a node is not known to the other nodes",
            });
        }
        LockError::advised(
            BackendErrorKind::Unreachable,
            format!(
                "the server at {} does not belong to the cluster in use",
                self.text()
            ),
            "the address may have been given to another server; the nodes of the cluster tell the new address",
        )
    }

    fn is_another_server(&self) -> LockError {
        LockError::advised(
            BackendErrorKind::Unreachable,
            format!(
                "the lock server at {} is another one than that of the open connections",
                self.text()
            ),
            "use an address that leads to one server: locks of one server are free at another",
        )
    }

    /// Asks a process over all open connections whether it still serves.
    async fn word_of(&self, run_id: u64, limit: Duration) -> Word {
        let mut asking = JoinSet::new();
        for connection in self.open_connections_to(run_id) {
            assert_no_mutex_held();
            asking.spawn(async move { connection.is_replica(limit).await });
        }
        while let Some(asked) = asking.join_next().await {
            match asked {
                Ok(Some(true)) => return Word::ServesNoMore,
                Ok(Some(false)) => return Word::Serves,
                Ok(None) | Err(_) => {}
            }
        }
        // A silent connection ends by its own rule. Until it does, its silence doesn't show that the process has ended.
        if self.open_connections_to(run_id).next().is_none() {
            Word::ServesNoMore
        } else {
            Word::Silence
        }
    }

    /// Records the end of a connection.
    pub(super) fn link_ended(&self, at: Moment) {
        self.ended_at.fetch_max(at.as_nanos(), Ordering::AcqRel);
    }

    /// Returns until when a process has run at least, as its connections show; `None` without any.
    #[cfg(feature = "quorum")]
    pub(super) fn last_alive(&self, run_id: u64) -> Option<Moment> {
        if self.open_connections_to(run_id).next().is_some() {
            return Some(Clock::System.now());
        }
        let ended_at = self.ended_at.load(Ordering::Acquire);
        (ended_at > 0).then(|| Moment::from_nanos(ended_at))
    }

    /// Records why a connection to the server is not used any more.
    pub(super) fn connection_broke(&self, error: &LockError) {
        if is_replica(error) {
            self.was_replica.store(true, Ordering::Release);
        }
    }

    /// Returns whether the server has said over a connection that it is a replica.
    pub(super) fn was_replica(&self) -> bool {
        self.was_replica.load(Ordering::Acquire)
    }

    /// Returns whether connections speak RESP2, which brings no notifications.
    pub(super) fn speaks_resp2(&self) -> bool {
        Clock::System.now().as_nanos() < self.resp2.until.load(Ordering::Acquire)
    }

    /// Records that this process of the server refuses RESP3 and serves RESP2. It is certain if the refusal was about
    /// RESP3. Returns whether that is news.
    pub(super) fn found_resp2(&self, run_id: u64, is_certain: bool) -> bool {
        let known_run_id = self.resp2.run_id.swap(run_id, Ordering::AcqRel);
        let span = if is_certain {
            RESP2_FOR
        } else {
            let doubts = self.resp2.doubts.fetch_add(1, Ordering::AcqRel);
            let doubled = 2_u32.saturating_pow(doubts.min(10));
            RESP2_AT_FIRST.saturating_mul(doubled).min(RESP2_FOR)
        };
        let until = Clock::System.now().plus(span);
        let known_until = self.resp2.until.swap(until.as_nanos(), Ordering::AcqRel);
        known_until == 0 || known_run_id != run_id
    }

    /// Returns whether the server has ever accepted RESP3, so that it closes connections for another reason.
    pub(super) fn knows_resp3(&self) -> bool {
        self.resp2.knows_resp3.load(Ordering::Acquire)
    }

    pub(super) fn accepted_resp3(&self) {
        self.resp2.knows_resp3.store(true, Ordering::Release);
        self.resp2.doubts.store(0, Ordering::Release);
    }

    /// Records the server process of a new connection. Another one may know RESP3.
    pub(super) fn saw_process(&self, run_id: u64) {
        if self.resp2.run_id.load(Ordering::Acquire) != run_id {
            self.resp2.until.store(0, Ordering::Release);
            self.resp2.doubts.store(0, Ordering::Release);
        }
    }

    /// Returns how far the seed of a counter lies ahead of the server's time.
    pub(super) fn lead_us(&self) -> u64 {
        self.told.lead_us.load(Ordering::Acquire)
    }

    /// Returns the lowest fencing token that a grant may have over any connection.
    pub(super) fn floor_us(&self) -> u64 {
        self.told.floor_us.load(Ordering::Acquire)
    }

    /// Raises the lead, and the floor, to those of the epoch that the server has told. They never fall while this
    /// process knows the server.
    pub(super) fn epoch_told(&self, reply: &EpochReply) {
        let EpochReply {
            asked,
            lead_us,
            server_us,
        } = *reply;
        let told = &self.told;
        // A connection from before this epoch has an older floor.
        if told.lead_us.load(Ordering::Acquire) < lead_us {
            let floor_us = server_us.saturating_add(lead_us);
            told.floor_us.fetch_max(floor_us, Ordering::AcqRel);
        }
        told.lead_us.fetch_max(lead_us, Ordering::AcqRel);
        told.asked.fetch_max(asked.as_nanos(), Ordering::AcqRel);
    }

    /// The server may have got a new epoch.
    pub(super) fn doubt_epoch(&self) {
        let now = Clock::System.now().as_nanos();
        self.told.doubted.fetch_max(now, Ordering::AcqRel);
    }

    /// Returns whether the server was asked for its epoch since it may have got a new one, and not longer ago than
    /// this.
    pub(super) fn knows_epoch(&self, longest_ago: Duration) -> bool {
        let asked = self.told.asked.load(Ordering::Acquire);
        let ago = Clock::System.now().since(Moment::from_nanos(asked));
        asked > self.told.doubted.load(Ordering::Acquire) && ago <= longest_ago
    }
}

/// What a server tells of its configuration epoch.
pub(super) struct EpochReply {
    /// When the question was sent.
    pub(super) asked: Moment,
    /// How far the tokens of this epoch lie ahead of the server's clock.
    pub(super) lead_us: u64,
    /// The time of the server, not before it became the primary of this epoch.
    pub(super) server_us: u64,
}

#[derive(Debug, Default)]
struct ToldEpoch {
    /// How far a fencing token lies ahead of the server's clock at least, in microseconds.
    lead_us: AtomicU64,
    /// The time of the server when it first told this epoch, and the lead.
    floor_us: AtomicU64,
    /// When the server was last asked for its epoch with success, in nanoseconds of the system's clock; 0 if it was
    /// not.
    asked: AtomicU64,
    /// Replies to questions from before this moment may tell of an epoch that has ended.
    doubted: AtomicU64,
}

/// Returns the address for labels.
pub(super) fn server_address(address: &NodeAddress) -> ServerAddress {
    match address {
        NodeAddress::Tcp(host, port) => ServerAddress::new(host.as_str(), Some(*port)),
        NodeAddress::Unix(_) => ServerAddress::new(address.to_string(), None),
    }
}

/// Returns whether a server has said that it is no primary.
pub(super) fn is_replica(error: &LockError) -> bool {
    matches!(error, LockError::Backend(error) if error.kind() == BackendErrorKind::NotPrimary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_epoch_raises_the_floor_of_old_connections() {
        let node = Node::new(NodeAddress::Tcp("a".into(), 1));
        let told = |lead_us, server_us| {
            let asked = Clock::System.now();
            node.epoch_told(&EpochReply {
                asked,
                lead_us,
                server_us,
            });
            (node.lead_us(), node.floor_us())
        };
        assert_eq!(told(60, 1_000), (60, 1_060));
        // Later replies of the same epoch do not seed the counters again.
        assert_eq!(told(60, 2_000), (60, 1_060));
        assert_eq!(told(180, 3_000), (180, 3_180));
        // A reply that was late.
        assert_eq!(told(120, 4_000), (180, 3_180));
    }

    #[test]
    fn another_server_at_another_address_is_elsewhere() {
        let node = Node::new(NodeAddress::Tcp("a".into(), 1));
        let [here, there] = [1, 2].map(|last| Some(IpAddr::from([127, 0, 0, last])));
        assert!(!node.is_elsewhere(7, there));
        node.uses(7, here);
        let seen = [(7, here), (7, there), (8, here), (8, there), (8, None)];
        let seen = seen.map(|(run_id, peer)| node.is_elsewhere(run_id, peer));
        assert_eq!(seen, [false, false, false, true, false]);
        // Nobody can tell.
        assert!(node.is_elsewhere(UNKNOWN_RUN_ID, there));
        assert!(!node.is_elsewhere(UNKNOWN_RUN_ID, here));
        // A quorum counts the silence of a former member from here.
        node.link_ended(Moment::from_nanos(5));
        let moved = node.moved();
        assert_eq!((moved.generation, moved.last_peer()), (1, None));
        assert_eq!(moved.ended_at.load(Ordering::Acquire), 5);
    }

    #[test]
    fn resp2_is_news_once_for_each_process() {
        let node = Node::new(NodeAddress::Tcp("a".into(), 1));
        assert!(!node.speaks_resp2());
        assert!(node.found_resp2(7, true) && node.speaks_resp2());
        assert!(!node.found_resp2(7, false));
        node.saw_process(7);
        assert!(node.speaks_resp2());
        node.saw_process(8);
        assert!(!node.speaks_resp2());
        // Whoever may have refused for another reason is asked again soon, and then less and less often.
        for seconds in [5, 10, 20, 40, 80, 160, 320, 600, 600] {
            node.found_resp2(8, false);
            let until = Moment::from_nanos(node.resp2.until.load(Ordering::Acquire));
            let left = until.since(Clock::System.now());
            let span = Duration::from_secs(seconds);
            assert!(left <= span && left > span / 2, "{seconds}: {left:?}");
        }
        node.saw_process(9);
        assert!(node.found_resp2(9, true) && node.speaks_resp2());
    }

    #[test]
    fn epoch_is_known_while_it_is_fresh_and_not_in_doubt() {
        let node = Node::new(NodeAddress::Tcp("a".into(), 1));
        let fresh = Duration::from_secs(60);
        assert!(!node.knows_epoch(fresh));
        let before_the_doubt = Clock::System.now();
        let told = |asked| {
            node.epoch_told(&EpochReply {
                asked,
                lead_us: 0,
                server_us: 0,
            });
        };
        told(before_the_doubt);
        assert!(node.knows_epoch(fresh));
        node.doubt_epoch();
        assert!(!node.knows_epoch(fresh));
        told(before_the_doubt);
        assert!(!node.knows_epoch(fresh));
        told(Clock::System.now().plus(Duration::from_nanos(1)));
        assert!(node.knows_epoch(fresh));
        std::thread::sleep(Duration::from_millis(2));
        assert!(!node.knows_epoch(Duration::from_millis(1)));
    }
}
