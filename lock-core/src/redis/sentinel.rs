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

use super::deployment::{Login, NodeAddress, Sentinels};
use super::dial::SharedTls;
use super::node::{Node, is_replica};
use super::node_config::NodeConfig;
use crate::error::{BackendErrorKind, LockError};
use crate::sync::Mutex;
use crate::telemetry::{LockEvent, Reporter};
use lock_protocol::clock::{Clock, Moment};
use lock_protocol::primary::{
    Announcement, Introduction, KnownPrimary, KnownSentinels, PrimaryChoice, SentinelReply, choose,
};

mod discovery;
mod link;

#[cfg(feature = "__doctor")]
pub(super) use link::listed;
use link::{KnownHere, SentinelLink};

/// The pause between two questions to one Sentinel.
const POLL: Duration = Duration::from_secs(1);
/// The pause between two questions after a failure of the primary.
const AFTER_FAILURE: Duration = Duration::from_millis(50);

type PrimaryReply = SentinelReply<NodeAddress>;

/// What the Sentinels of a service say.
pub(super) struct SentinelWatch {
    sentinels: SentinelAccess,
    service: String,
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
    /// The Sentinels of the URL. Others have told the addresses of all others.
    of_url: Arc<[NodeAddress]>,
    config: Arc<NodeConfig>,
}

impl SentinelAccess {
    /// Returns the address at which this client reaches a Sentinel.
    fn reach(&self, address: &NodeAddress) -> Result<NodeAddress, LockError> {
        let mapped = match &self.config.settings.address_map {
            Some(map) if !self.of_url.contains(address) => {
                address.reached_by(map, &self.config.reporter)?
            }
            _ => None,
        };
        Ok(mapped.unwrap_or_else(|| address.clone()))
    }
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
    /// When the server said last that it is a replica. It is not used until a Sentinel has replied to a later
    /// question.
    withdrawn_at: Option<Moment>,
}

impl Known {
    /// Stops using the server, with all connections to it. Returns the new generation.
    fn withdraw(&mut self, now: Moment) -> u64 {
        if self.withdrawn_at.replace(now).is_none() {
            let (address, epoch) = (self.node.address.clone(), self.node.epoch);
            let node = Node::of_generation(address, self.node.generation + 1, epoch);
            self.node = Arc::new(node.announced_by_sentinels());
        }
        self.node.generation
    }
}

impl SentinelWatch {
    /// Asks all Sentinels of the URL, within the limit.
    pub(super) async fn begin(
        of_url: Sentinels,
        config: &Arc<NodeConfig>,
        limit: Duration,
    ) -> Result<Self, LockError> {
        let watch = Self::new(of_url, config)?;
        watch.discover(limit).await?;
        Ok(watch)
    }

    /// Makes a watch that has asked nobody yet.
    #[cfg_attr(
        not(feature = "__tls"),
        expect(clippy::unnecessary_wraps, reason = "with TLS it can fail")
    )]
    pub(super) fn new(of_url: Sentinels, config: &Arc<NodeConfig>) -> Result<Self, LockError> {
        let tls = config.tls.clone().filter(|_| of_url.tls);
        #[cfg(feature = "__tls")]
        if tls.is_none() && config.tls.as_ref().is_some_and(|it| !it.fixes_name()) {
            return Err(LockError::advised(
                BackendErrorKind::Tls,
                "the Sentinels have no TLS, so a forged reply of theirs can name any server with a valid certificate",
                "set `server_name` of `Tls`, or `ssl_server_name` in the URL, to a name that only the certificates of \
                 your servers have; or remove `sentinel_tls=false`",
            ));
        }
        let shows_password = of_url.login.password.is_some() && tls.is_none();
        // A primary gets its login if a Sentinel names it.
        let shows_login = config.has_login() && config.tls.is_none();
        let introduction = if shows_password || shows_login {
            Introduction::ByUrl
        } else {
            Introduction::ByAll
        };
        let addresses = of_url.addresses.iter().cloned().collect();
        let sentinels = KnownSentinels::of_url(of_url.addresses, introduction);
        Ok(Self {
            sentinels: SentinelAccess {
                login: of_url.login,
                tls,
                of_url: addresses,
                config: Arc::clone(config),
            },
            service: of_url.service,
            state: Mutex::new(WatchState {
                followed: sentinels.addresses(),
                sentinels,
                known: None,
                is_unusable: false,
            }),
            changed: watch::Sender::new(0),
            ask: watch::Sender::new(Clock::System.now()),
            followed: Notify::new(),
        })
    }

    /// Returns a node that stands in for the primary before it is known, at the address of a Sentinel.
    pub(super) fn stand_in(&self) -> Arc<Node> {
        let first = self.sentinels.of_url.first().cloned();
        let unknown = || NodeAddress::Tcp(self.service.clone(), 0);
        Arc::new(Node::new(first.unwrap_or_else(unknown)))
    }

    fn reporter(&self) -> &Reporter {
        &self.sentinels.config.reporter
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

    /// Records the outcome of an attempt to connect to this primary. Returns an error if the connection must not be
    /// used: a server that was a replica meanwhile is the primary of a later epoch, which only a Sentinel tells.
    /// With the earlier epoch, its tokens might go back.
    pub(super) fn tried(&self, node: &Node, error: Option<&LockError>) -> Result<(), LockError> {
        let (is_usable, withdrawn) = {
            let mut state = self.state.lock();
            let Some(known) = state.known.as_mut() else {
                return Ok(());
            };
            if known.node.generation != node.generation {
                return Ok(());
            }
            let was_replica = node.was_replica() || error.is_some_and(is_replica);
            let withdrawn = was_replica.then(|| known.withdraw(Clock::System.now()));
            let is_usable =
                known.withdrawn_at.is_none() && error.is_none_or(|error| !error.is_retryable());
            state.is_unusable = !is_usable;
            (is_usable, withdrawn)
        };
        if let Some(generation) = withdrawn {
            self.use_generation(generation);
        }
        if is_usable {
            return Ok(());
        }
        self.reporter()
            .waking(|| self.ask.send_modify(|at| *at = Clock::System.now()));
        if error.is_some() {
            // It says more than the error here.
            return Ok(());
        }
        Err(LockError::backend(
            BackendErrorKind::NoPrimary,
            format!(
                "the lock server at {} was a replica, and no Sentinel has named it since",
                node.text()
            ),
        ))
    }

    /// Retires the connections of earlier generations.
    fn use_generation(&self, generation: u64) {
        self.reporter()
            .waking(|| self.changed.send_modify(|current| *current = generation));
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
            let reply = link.ask(self.sentinels.config.timeout()).await;
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

    /// Records what a Sentinel says about itself and the others.
    fn learn(&self, from: &NodeAddress, known: KnownHere) {
        self.change_sentinels(|sentinels, now| {
            if let Some(run_id) = known.run_id {
                sentinels.identified(from, run_id);
            }
            sentinels.listed(from, known.others, now);
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
            self.reporter().waking(|| self.followed.notify_one());
        }
    }

    /// Changes the primary if the latest replies say so.
    fn decide(&self, now: Moment) {
        let (node, is_reset, is_first) = {
            let mut state = self.state.lock();
            let is_first = state.known.is_none();
            state.confirm();
            let replies = state.sentinels.replies(now);
            let condition = if state.is_unusable {
                KnownPrimary::Unusable
            } else {
                KnownPrimary::Usable
            };
            let known = state.known.as_ref().map(|known| &known.announced);
            match choose(known, condition, &replies) {
                PrimaryChoice::Keep => return,
                PrimaryChoice::Switch(announced) => (state.set(announced), false, is_first),
                PrimaryChoice::Reset(announced) => (state.set(announced), true, is_first),
            }
        };
        if is_first {
            return;
        }
        self.reporter().emit(&LockEvent::PrimaryChanged {
            server: &node.server,
            epoch: node.epoch,
            is_reset,
        });
        self.use_generation(node.generation);
    }
}

impl WatchState {
    /// Uses a server again that was withdrawn, if a Sentinel has named a primary since, of its epoch or a later one.
    fn confirm(&mut self) {
        let Some(known) = &mut self.known else {
            return;
        };
        let epoch = known.announced.epoch;
        let is_unnamed = |at: &Moment| !self.sentinels.know_since(*at, epoch);
        known.withdrawn_at = known.withdrawn_at.filter(is_unnamed);
    }

    /// Makes this server the primary. The epoch of its tokens never falls.
    fn set(&mut self, announced: Announcement<NodeAddress>) -> Arc<Node> {
        let (generation, epoch) = match &self.known {
            Some(known) => (known.node.generation + 1, known.node.epoch),
            None => (0, 0),
        };
        let epoch = announced.epoch.max(epoch);
        let node = Node::of_generation(announced.address.clone(), generation, epoch);
        let node = Arc::new(node.announced_by_sentinels());
        self.is_unusable = false;
        self.known = Some(Known {
            announced,
            node: Arc::clone(&node),
            withdrawn_at: None,
        });
        node
    }
}
