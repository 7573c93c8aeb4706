//! Finds the primary of a service through its Sentinels, and notices when it changes.
//!
//! All Sentinels are asked, side by side, and the reply with the highest configuration epoch counts. While
//! the manager lives, each Sentinel is asked each second, and it is subscribed to its announcements. When
//! the primary changes, connections to the old one are retired at once: it may take writes for ten seconds
//! after it comes back.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use super::dial::SharedTls;
use super::node::Node;
use super::place::{Login, NodeAddress, SentinelPlace};
use crate::error::{BackendErrorKind, LockError};
use crate::protocol::clock::{Clock, Deadline, Moment};
use crate::protocol::primary::{Announcement, KnownPrimary, PrimaryChoice, choose};
use crate::sync::Mutex;
use crate::telemetry::{LockEvent, Reporter};

mod link;

use link::{REPLY, SentinelLink};

/// The pause between two questions to one Sentinel.
const POLL: Duration = Duration::from_secs(1);
/// The pause between two questions after a failure of the primary.
const AFTER_FAILURE: Duration = Duration::from_millis(50);
/// A reply counts for this long.
const FRESH: Duration = Duration::from_secs(3);

type PrimaryReply = Announcement<NodeAddress>;

/// What the Sentinels of a service say.
pub(super) struct SentinelWatch {
    sentinels: SentinelAccess,
    service: String,
    /// How long a connection to a Sentinel may take.
    patience: Duration,
    reporter: Arc<Reporter>,
    state: Mutex<WatchState>,
    /// The generation of the primary.
    changed: watch::Sender<u64>,
    /// Asks all Sentinels at once.
    ask: watch::Sender<Moment>,
    /// A Sentinel became known.
    learned: Notify,
}

/// How to reach the Sentinels.
#[derive(Clone)]
struct SentinelAccess {
    login: Login,
    tls: Option<SharedTls>,
}

struct WatchState {
    /// The latest reply of each known Sentinel, and when it came.
    replies: HashMap<NodeAddress, Option<(PrimaryReply, Moment)>>,
    known: Option<Known>,
    /// The known primary cannot be reached, or is no primary.
    is_unusable: bool,
}

struct Known {
    announced: PrimaryReply,
    node: Arc<Node>,
}

impl SentinelWatch {
    /// Asks all Sentinels of the URL, within the limit. Later, connecting to one takes `patience` at most.
    pub(super) async fn begin(
        place: SentinelPlace,
        tls: Option<SharedTls>,
        reporter: Arc<Reporter>,
        patience: Duration,
        limit: Duration,
    ) -> Result<Self, LockError> {
        let replies = place.sentinels.into_iter().map(|at| (at, None)).collect();
        let watch = Self {
            sentinels: SentinelAccess {
                login: place.login,
                tls,
            },
            service: place.service,
            patience,
            reporter,
            state: Mutex::new(WatchState {
                replies,
                known: None,
                is_unusable: false,
            }),
            changed: watch::Sender::new(0),
            ask: watch::Sender::new(Clock::System.now()),
            learned: Notify::new(),
        };
        watch.discover(limit).await?;
        Ok(watch)
    }

    /// Asks all known Sentinels. After the first reply, the others have as long as a question takes: one of them
    /// may know of a later failover.
    pub(super) async fn discover(&self, limit: Duration) -> Result<(), LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let mut asked = JoinSet::new();
        for address in self.addresses() {
            let access = self.sentinels.clone();
            let service = self.service.clone();
            asked.spawn(async move {
                let mut link = SentinelLink::new(address.clone(), access, service);
                let reply = tokio::time::timeout(deadline.left(), link.ask(limit)).await;
                let reply = reply.unwrap_or_else(|_elapsed| Err(link.timed_out()));
                (address, reply)
            });
        }
        let mut failures = Vec::new();
        let mut replies = Vec::new();
        let mut others: Option<Deadline> = None;
        loop {
            let joined = match others {
                // The limits of the questions end this wait.
                None => asked.join_next().await,
                Some(others) => {
                    let joined = tokio::time::timeout(others.left(), asked.join_next()).await;
                    joined.unwrap_or_default()
                }
            };
            let Some(joined) = joined else { break };
            match joined {
                Ok((address, Ok(reply))) => {
                    others = others.or_else(|| Some(Deadline::after(Clock::System, REPLY)));
                    replies.push((address, reply));
                }
                Ok((_, Err(error))) => failures.push(error),
                Err(_ended) => return Err(LockError::NoRuntime),
            }
        }
        let now = Clock::System.now();
        let best = {
            let mut state = self.state.lock();
            for (address, reply) in replies {
                state.replies.insert(address, Some((reply, now)));
            }
            state.fresh_replies(now)
        };
        let is_known = self.node().is_some();
        match choose(None, KnownPrimary::Usable, &best) {
            PrimaryChoice::Keep => Err(self.not_found(failures)),
            PrimaryChoice::Switch(announced) | PrimaryChoice::Reset(announced) if !is_known => {
                self.state.lock().set(announced);
                Ok(())
            }
            _ => {
                self.decide(now);
                Ok(())
            }
        }
    }

    /// The error of a watch that has never known a primary.
    pub(super) fn unknown_primary(&self) -> LockError {
        self.not_found(Vec::new())
    }

    /// Returns the error of a service without a known primary. A reason that waiting does not cure goes
    /// first.
    fn not_found(&self, failures: Vec<LockError>) -> LockError {
        let mut failures = failures;
        // A Sentinel that replies says more than one that cannot be reached.
        if let Some(at) = failures.iter().position(is_unknown_service) {
            return failures.swap_remove(at);
        }
        failures.sort_by_key(LockError::is_retryable);
        match failures.into_iter().next() {
            Some(error) if !error.is_retryable() => error,
            Some(error) => LockError::caused(
                BackendErrorKind::NoPrimary,
                format!("no Sentinel of the service `{}` replies", self.service),
                error,
            ),
            None => LockError::backend(
                BackendErrorKind::NoPrimary,
                format!("the service `{}` has no Sentinel", self.service),
            ),
        }
    }

    fn addresses(&self) -> Vec<NodeAddress> {
        self.state.lock().replies.keys().cloned().collect()
    }

    /// Returns the primary.
    pub(super) fn node(&self) -> Option<Arc<Node>> {
        let state = self.state.lock();
        state.known.as_ref().map(|known| Arc::clone(&known.node))
    }

    /// Returns the generations of the primary, beginning with the current one.
    pub(super) fn generations(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Records whether a connection to this primary could be made.
    pub(super) fn reached(&self, node: &Node, is_usable: bool) {
        {
            let mut state = self.state.lock();
            let known = state.known.as_ref();
            if known.is_none_or(|known| known.node.generation != node.generation) {
                return;
            }
            state.is_unusable = !is_usable;
        }
        if !is_usable {
            self.reporter
                .waking(|| self.ask.send_modify(|at| *at = Clock::System.now()));
        }
    }

    /// Watches all Sentinels for as long as it is polled.
    pub(super) async fn watch(self: Arc<Self>) {
        let mut links: HashMap<NodeAddress, tokio::task::AbortHandle> = HashMap::new();
        let mut tasks = JoinSet::new();
        loop {
            let learned = self.learned.notified();
            for address in self.addresses() {
                links
                    .entry(address.clone())
                    .or_insert_with(|| tasks.spawn(Arc::clone(&self).follow(address)));
            }
            learned.await;
        }
    }

    /// Asks one Sentinel, each second and whenever something failed.
    async fn follow(self: Arc<Self>, address: NodeAddress) {
        let mut link = SentinelLink::new(
            address.clone(),
            self.sentinels.clone(),
            self.service.clone(),
        );
        let mut asked = self.ask.subscribe();
        loop {
            let reply = link.ask(self.patience).await;
            self.heard(&address, reply.ok());
            let known = link.others().await;
            self.learn(known);
            tokio::select! {
                () = link.announced() => {}
                _changed = asked.changed() => tokio::time::sleep(AFTER_FAILURE).await,
                () = tokio::time::sleep(POLL) => {}
            }
        }
    }

    fn learn(&self, known: Vec<NodeAddress>) {
        let has_new = {
            let mut state = self.state.lock();
            let before = state.replies.len();
            for address in known {
                state.replies.entry(address).or_default();
            }
            state.replies.len() > before
        };
        if has_new {
            self.reporter.waking(|| self.learned.notify_one());
        }
    }

    /// Records the reply of a Sentinel, and changes the primary if the replies say so.
    fn heard(&self, from: &NodeAddress, reply: Option<PrimaryReply>) {
        let now = Clock::System.now();
        let reply = reply.map(|reply| (reply, now));
        self.state.lock().replies.insert(from.clone(), reply);
        self.decide(now);
    }

    /// Changes the primary if the latest replies say so.
    fn decide(&self, now: Moment) {
        let (node, is_reset) = {
            let mut state = self.state.lock();
            let replies = state.fresh_replies(now);
            let condition = if state.is_unusable {
                KnownPrimary::Unusable
            } else {
                KnownPrimary::Usable
            };
            let known = state.known.as_ref().map(|known| &known.announced);
            match choose(known, condition, &replies) {
                PrimaryChoice::Keep => return,
                PrimaryChoice::Switch(announced) => (state.set(announced), false),
                PrimaryChoice::Reset(announced) => (state.set(announced), true),
            }
        };
        self.reporter.emit(&LockEvent::PrimaryChanged {
            server: &node.server,
            epoch: node.epoch,
            is_reset,
        });
        self.reporter.waking(|| {
            self.changed
                .send_modify(|generation| *generation = node.generation);
        });
    }
}

fn is_unknown_service(error: &LockError) -> bool {
    matches!(error, LockError::Backend(error) if error.kind() == BackendErrorKind::NoPrimary)
}

impl WatchState {
    fn fresh_replies(&self, now: Moment) -> Vec<Option<PrimaryReply>> {
        let fresh = |reply: &Option<(PrimaryReply, Moment)>| {
            let (reply, at) = reply.as_ref()?;
            (now.since(*at) <= FRESH).then(|| reply.clone())
        };
        self.replies.values().map(fresh).collect()
    }

    /// Makes this server the primary. The epoch of its tokens never falls.
    fn set(&mut self, announced: PrimaryReply) -> Arc<Node> {
        let (generation, epoch) = match &self.known {
            Some(known) => (known.node.generation + 1, known.node.epoch),
            None => (0, 0),
        };
        let epoch = announced.epoch.max(epoch);
        let node = Node::announced(announced.address.clone(), generation, epoch);
        let node = Arc::new(node);
        self.is_unusable = false;
        self.known = Some(Known {
            announced,
            node: Arc::clone(&node),
        });
        node
    }
}
