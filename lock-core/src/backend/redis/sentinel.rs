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
use tokio::task::{AbortHandle, JoinSet};

use super::dial::SharedTls;
use super::node::Node;
use super::place::{Login, NodeAddress, SentinelPlace};
use crate::error::{BackendErrorKind, LockError};
use crate::protocol::clock::{Clock, Deadline, Moment};
use crate::protocol::primary::{
    Announcement, KnownPrimary, KnownSentinels, PrimaryChoice, SentinelReply, choose,
};
use crate::sync::Mutex;
use crate::telemetry::{LockEvent, Reporter};

mod link;

use link::{KnownHere, REPLY, SentinelLink};

/// The pause between two questions to one Sentinel.
const POLL: Duration = Duration::from_secs(1);
/// The pause between two questions after a failure of the primary.
const AFTER_FAILURE: Duration = Duration::from_millis(50);

type PrimaryReply = SentinelReply<NodeAddress>;

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
    /// Other Sentinels have to be asked regularly.
    followed: Notify,
}

/// How to reach the Sentinels.
#[derive(Clone)]
struct SentinelAccess {
    login: Login,
    tls: Option<SharedTls>,
}

struct WatchState {
    sentinels: KnownSentinels<NodeAddress>,
    /// The Sentinels that are asked regularly.
    followed: Vec<NodeAddress>,
    known: Option<Known>,
    /// The known primary cannot be reached, or is no primary.
    is_unusable: bool,
}

struct Known {
    announced: Announcement<NodeAddress>,
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
        let sentinels = KnownSentinels::of_url(place.sentinels);
        let watch = Self {
            sentinels: SentinelAccess {
                login: place.login,
                tls,
            },
            service: place.service,
            patience,
            reporter,
            state: Mutex::new(WatchState {
                followed: sentinels.addresses(),
                sentinels,
                known: None,
                is_unusable: false,
            }),
            changed: watch::Sender::new(0),
            ask: watch::Sender::new(Clock::System.now()),
            followed: Notify::new(),
        };
        watch.discover(limit).await?;
        Ok(watch)
    }

    /// Asks all known Sentinels. After the first reply, the others have as long as a question takes: one of them
    /// may know of a later failover.
    pub(super) async fn discover(&self, limit: Duration) -> Result<(), LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let mut asked = JoinSet::new();
        let addresses = self.state.lock().sentinels.addresses();
        for address in addresses {
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
                state.sentinels.replied(&address, Some(reply));
            }
            state.sentinels.replies(now)
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
        let mut links: HashMap<NodeAddress, AbortHandle> = HashMap::new();
        let mut tasks = JoinSet::new();
        loop {
            let changed = self.followed.notified();
            let followed = self.state.lock().followed.clone();
            links.retain(|address, link| {
                let is_followed = followed.contains(address);
                if !is_followed {
                    link.abort();
                }
                is_followed
            });
            for address in followed {
                links
                    .entry(address.clone())
                    .or_insert_with(|| tasks.spawn(Arc::clone(&self).follow(address)));
            }
            while tasks.try_join_next().is_some() {}
            changed.await;
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
            self.learn(&address, known);
            tokio::select! {
                () = link.announced() => {}
                _changed = asked.changed() => tokio::time::sleep(AFTER_FAILURE).await,
                () = tokio::time::sleep(POLL) => {}
            }
        }
    }

    /// Records what a Sentinel that replies tells of itself and the others.
    fn learn(&self, from: &NodeAddress, known: KnownHere) {
        self.change_sentinels(|sentinels, now| {
            if let Some(run_id) = known.run_id {
                sentinels.identified(from, run_id);
            }
            sentinels.listed(known.others, now);
        });
    }

    /// Records the reply of a Sentinel, and changes the primary if the replies say so.
    fn heard(&self, from: &NodeAddress, reply: Option<PrimaryReply>) {
        self.change_sentinels(|sentinels, _| sentinels.replied(from, reply));
        self.decide(Clock::System.now());
    }

    /// Changes what is known of the Sentinels, and forgets those that are gone.
    fn change_sentinels(&self, change: impl FnOnce(&mut KnownSentinels<NodeAddress>, Moment)) {
        let now = Clock::System.now();
        let has_changed = {
            let mut state = self.state.lock();
            change(&mut state.sentinels, now);
            state.sentinels.forget_gone(now);
            let followed = state.sentinels.followed(now);
            let has_changed = followed != state.followed;
            state.followed = followed;
            has_changed
        };
        if has_changed {
            self.reporter.waking(|| self.followed.notify_one());
        }
    }

    /// Changes the primary if the latest replies say so.
    fn decide(&self, now: Moment) {
        let (node, is_reset) = {
            let mut state = self.state.lock();
            let replies = state.sentinels.replies(now);
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
    /// Makes this server the primary. The epoch of its tokens never falls.
    fn set(&mut self, announced: Announcement<NodeAddress>) -> Arc<Node> {
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
