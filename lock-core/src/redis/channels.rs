//! The channels of one server: which of them waiters need, and which are subscribed.
//!
//! Waiters of all runtimes and the listener meet here. A waiter that needs a channel writes it down and may wait for
//! the first answer of the server; the listener ([`listening`](super::listening)) subscribes and writes down what
//! became of it. Nothing here does IO.
//!
//! # The kinds
//!
//! | Kind | One for | Subscribed | Ends when idle for | Makes room |
//! |---|---|---|---|---|
//! | manager | a single server | classic | never | never |
//! | slot | each slot with waiters, in a cluster | sharded | 11 min | after 60 s without a waiter |
//! | key | each key with waiters in a dialect of Redisson | classic, and sharded in a cluster | 10 s | after 5 s |
//!
//! # The phases
//!
//! | Phase | Event | Next |
//! |---|---|---|
//! | unknown | a waiter needs it | wanted; down while the listener pauses |
//! | wanted, down | the listener subscribes | asked |
//! | asked | the server confirms | up |
//! | asked | the server refuses | refused until some time later |
//! | refused | a waiter needs it after that time | wanted |
//! | up, asked | its slot has moved | unknown |
//! | any | the connection ends | down |
//! | any | idle, or it makes room for another one | unknown; the listener unsubscribes |
//!
//! A waiter waits for a channel only while it is wanted or asked, and at most for its limit. It polls otherwise, and
//! leaves a mark: messages on a channel that isn't up are lost for it. When the channel goes up, whoever left a mark is
//! woken and polls once more. The mark is set *after* the waiter has looked, and only if the channel is still not up,
//! so at least one of both sees the other.

use std::collections::BTreeMap;
#[cfg(feature = "cluster")]
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use super::transport::{Subscribed, Subscribing};
use crate::store::PollingReason;
use crate::sync::Mutex;
use crate::telemetry::Reporter;
use lock_protocol::clock::{Clock, Deadline, Moment};
use lock_protocol::clock_sync::UNKNOWN_RUN_ID;
use lock_protocol::key::LockKey;
#[cfg(feature = "cluster")]
use lock_protocol::route::{HashSlot, channel_tag, slot_of};
use lock_protocol::wire;

/// What a channel is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChannelKind {
    Manager,
    #[cfg(feature = "cluster")]
    Slot,
    Key,
}

/// How many channels there may be, and how long one stays without a waiter.
#[derive(Clone, Copy, Debug)]
struct ChannelLimits {
    /// A subscription without a new waiter for this long ends.
    idle: Duration,
    /// The most subscriptions of this kind. Waiters of more channels poll.
    most: usize,
    /// A channel that was not used for longer has no waiter, and may make room for another one.
    without_waiters: Duration,
}

impl ChannelKind {
    fn limits(self) -> ChannelLimits {
        match self {
            Self::Manager => ChannelLimits {
                idle: Duration::MAX,
                most: 1,
                without_waiters: Duration::MAX,
            },
            // An entry in a queue lives for ten minutes at most. A subscribed waiter polls at least each 30 s.
            #[cfg(feature = "cluster")]
            Self::Slot => ChannelLimits {
                idle: Duration::from_secs(11 * 60),
                most: 4096,
                without_waiters: Duration::from_secs(60),
            },
            // A waiter polls at least each second. Redisson unsubscribes when its last thread stops to wait, and
            // subscribes again for the next one.
            Self::Key => ChannelLimits {
                idle: Duration::from_secs(10),
                most: 4096,
                without_waiters: Duration::from_secs(5),
            },
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// A waiter needs it. The listener has not subscribed yet.
    Wanted,
    /// The command was sent.
    Asked,
    /// Subscribed to the server process with this run id.
    Up(u64),
    /// The connection broke, or could not be made. Waiters poll until the next one has subscribed.
    Down,
    /// The server refused it. Waiters poll, and the first of them after this moment makes the listener try again.
    Refused { until: Moment, why: PollingReason },
}

/// The channels of one server.
pub(super) struct Channels {
    /// The manager's channel, and the beginning of each slot's channel. It contains the prefix, so that an ACL can
    /// separate the users of one server.
    manager: Arc<str>,
    is_cluster: bool,
    /// To find the name for a slot takes some milliseconds.
    #[cfg(feature = "cluster")]
    slots: Mutex<HashMap<HashSlot, Arc<str>>>,
    state: Mutex<State>,
    /// Counts the changes of the state.
    changed: watch::Sender<u64>,
    wanted: Notify,
    is_paused: AtomicBool,
    was_listened_to: AtomicBool,
    reporter: Arc<Reporter>,
}

#[derive(Default)]
struct State {
    // Trees, because each waiting acquire looks for one channel among few.
    classic: BTreeMap<Arc<str>, Channel>,
    sharded: BTreeMap<Arc<str>, Channel>,
    /// Channels that made room for others. The listener has to unsubscribe.
    leaving: Vec<Subscribed>,
}

struct Channel {
    kind: ChannelKind,
    phase: Phase,
    used_at: Moment,
    /// A waiter has seen that it was not subscribed, and may have missed a message.
    was_missed: bool,
}

impl State {
    fn of(&mut self, how: Subscribing) -> &mut BTreeMap<Arc<str>, Channel> {
        match how {
            Subscribing::Classic => &mut self.classic,
            Subscribing::Sharded => &mut self.sharded,
        }
    }

    fn all(&mut self) -> impl Iterator<Item = (Subscribing, &Arc<str>, &mut Channel)> {
        let classic = self.classic.iter_mut();
        let sharded = self.sharded.iter_mut();
        classic
            .map(|(name, channel)| (Subscribing::Classic, name, channel))
            .chain(sharded.map(|(name, channel)| (Subscribing::Sharded, name, channel)))
    }

    /// Forgets the channel of a kind that was idle longest, if there are too many and it has no waiter. Returns
    /// whether there is room for another one.
    fn make_room(&mut self, how: Subscribing, kind: ChannelKind, now: Moment) -> bool {
        let limits = kind.limits();
        let channels = self.of(how);
        if channels.len() < limits.most {
            return true;
        }
        let of_kind = || channels.iter().filter(|(_, it)| it.kind == kind);
        if of_kind().count() < limits.most {
            return true;
        }
        let idle = of_kind().min_by_key(|(_, it)| it.used_at);
        let idle = idle.filter(|(_, it)| now.since(it.used_at) > limits.without_waiters);
        let Some(name) = idle.map(|(name, _)| Arc::clone(name)) else {
            return false;
        };
        channels.remove(&name);
        self.leaving.push((how, name));
        true
    }
}

impl Channels {
    pub(super) fn new(prefix: &str, is_cluster: bool, reporter: &Arc<Reporter>) -> Self {
        let prefix = wire::in_channel(prefix);
        Self {
            manager: format!("lk1:{prefix}:{}", uuid::Uuid::new_v4()).into(),
            is_cluster,
            #[cfg(feature = "cluster")]
            slots: Mutex::default(),
            state: Mutex::default(),
            changed: watch::Sender::new(0),
            wanted: Notify::new(),
            is_paused: AtomicBool::new(false),
            was_listened_to: AtomicBool::new(false),
            reporter: Arc::clone(reporter),
        }
    }
}

/// What waiters ask.
impl Channels {
    /// Returns the channel of the manager. In a cluster it is none, but a name that no other manager has.
    pub(super) fn manager(&self) -> &Arc<str> {
        &self.manager
    }

    /// Returns whether the notifications for a native lock arrive from the server process with this run id, and the
    /// channel that its waiters name. Subscribes if no waiter has needed it yet, which takes at most `limit`.
    #[cfg_attr(
        not(feature = "cluster"),
        expect(unused_variables, reason = "only slots depend on the key")
    )]
    pub(super) async fn native_up_for(
        &self,
        key: &LockKey,
        run_id: u64,
        limit: impl FnOnce() -> Duration,
    ) -> (bool, Arc<str>) {
        #[cfg(feature = "cluster")]
        if self.is_cluster {
            let slot = slot_of(key.as_str().as_bytes());
            return match self.slot_up_for(slot, run_id, limit).await {
                Some(name) => (true, name),
                None => (false, Arc::clone(&self.manager)),
            };
        }
        let (how, kind, name) = (Subscribing::Classic, ChannelKind::Manager, &self.manager);
        let is_up = self.up_for(how, kind, name, run_id, limit).await;
        (is_up, Arc::clone(name))
    }

    /// As [`native_up_for`](Self::native_up_for), for one slot. Returns its channel if that is up.
    #[cfg(feature = "cluster")]
    pub(super) async fn slot_up_for(
        &self,
        slot: HashSlot,
        run_id: u64,
        limit: impl FnOnce() -> Duration,
    ) -> Option<Arc<str>> {
        let name = self.name_of_slot(slot);
        let (how, kind) = (Subscribing::Sharded, ChannelKind::Slot);
        let is_up = self.up_for(how, kind, &name, run_id, limit).await;
        is_up.then_some(name)
    }

    #[cfg(feature = "cluster")]
    fn name_of_slot(&self, slot: HashSlot) -> Arc<str> {
        let known = self.slots.lock().get(&slot).cloned();
        known.unwrap_or_else(|| {
            let name = format!("{}{{{}}}", self.manager, channel_tag(slot)).into();
            self.slots.lock().insert(slot, Arc::clone(&name));
            name
        })
    }

    /// Returns whether the messages about a key of Redisson arrive from the server process with this run id.
    /// Subscribes if no waiter has needed it yet, which takes at most `limit`.
    pub(super) async fn key_up_for(&self, key: &LockKey, run_id: u64, limit: Duration) -> bool {
        let deadline = Deadline::after(Clock::System, limit);
        let (name, kind) = (Arc::from(key.redisson_channel()), ChannelKind::Key);
        if self.is_cluster {
            // Both are wanted before the first one is awaited.
            let _phase = self.touch(Subscribing::Classic, kind, &name);
            let how = Subscribing::Sharded;
            let up = self.up_for(how, kind, &name, run_id, || deadline.left());
            if !up.await {
                return false;
            }
        }
        let how = Subscribing::Classic;
        self.up_for(how, kind, &name, run_id, || deadline.left())
            .await
    }

    /// As [`key_up_for`](Self::key_up_for), for channels that are subscribed already. They stay so for a while.
    pub(super) fn keep_key_if_up(&self, key: &LockKey, run_id: u64) -> bool {
        let (name, now) = (key.redisson_channel(), Clock::System.now());
        let mut state = self.state.lock();
        let mut keep = |how: &Subscribing| {
            let channel = state.of(*how).get_mut(&*name);
            let channel = channel.filter(|channel| channel.phase == Phase::Up(run_id));
            channel.map(|channel| channel.used_at = now).is_some()
        };
        let kept = self.ways_of_keys().iter().filter(|how| keep(how));
        kept.count() == self.ways_of_keys().len()
    }

    /// Returns how many subscriptions of this manager receive a message about the key.
    pub(super) fn own_subscriptions(&self, key: &LockKey, run_id: u64) -> usize {
        let name = key.redisson_channel();
        let ways = self.ways_of_keys().iter();
        ways.filter(|how| self.phase(**how, &name) == Some(Phase::Up(run_id)))
            .count()
    }

    /// Redisson uses sharded channels in a cluster since 3.22.0, and classic ones before.
    fn ways_of_keys(&self) -> &'static [Subscribing] {
        if self.is_cluster {
            &[Subscribing::Classic, Subscribing::Sharded]
        } else {
            &[Subscribing::Classic]
        }
    }

    async fn up_for(
        &self,
        how: Subscribing,
        kind: ChannelKind,
        name: &Arc<str>,
        run_id: u64,
        limit: impl FnOnce() -> Duration,
    ) -> bool {
        if run_id == UNKNOWN_RUN_ID {
            return false;
        }
        let is_up = match self.touch(how, kind, name) {
            None => return false,
            Some(Phase::Up(known)) => known == run_id,
            Some(Phase::Down | Phase::Refused { .. }) => false,
            // In a box, so that a waiter whose channel is known has a small future.
            Some(Phase::Wanted | Phase::Asked) => {
                Box::pin(self.first_answer(how, name, limit())).await == Some(Phase::Up(run_id))
            }
        };
        if !is_up {
            let mut state = self.state.lock();
            if let Some(channel) = state.of(how).get_mut(name)
                && channel.phase != Phase::Up(run_id)
            {
                channel.was_missed = true;
            }
        }
        is_up
    }

    /// Waits until the server has answered, for at most `limit`.
    async fn first_answer(&self, how: Subscribing, name: &str, limit: Duration) -> Option<Phase> {
        let mut changes = self.changed.subscribe();
        self.reporter.waking(|| self.wanted.notify_one());
        let is_open = |phase| matches!(phase, Some(Phase::Wanted | Phase::Asked));
        let known = changes.wait_for(|_| !is_open(self.phase(how, name)));
        let _known_or_timed_out = tokio::time::timeout(limit, known).await;
        self.phase(how, name)
    }

    /// Notes that a waiter needs a channel. Returns its phase; `None` if there are too many.
    fn touch(&self, how: Subscribing, kind: ChannelKind, name: &Arc<str>) -> Option<Phase> {
        let mut state = self.state.lock();
        if let Some(channel) = state.of(how).get_mut(name) {
            // The channel of a manager is never idle, and most waiters find it up.
            if kind != ChannelKind::Manager || !matches!(channel.phase, Phase::Up(_)) {
                let now = Clock::System.now();
                channel.used_at = now;
                if matches!(channel.phase, Phase::Refused { until, .. } if until <= now) {
                    channel.phase = Phase::Wanted;
                }
            }
            return Some(channel.phase);
        }
        let now = Clock::System.now();
        if !state.make_room(how, kind, now) {
            return None;
        }
        // The next connection subscribes to those that are down, too.
        let phase = if self.is_paused.load(Ordering::Acquire) {
            Phase::Down
        } else {
            Phase::Wanted
        };
        let channel = Channel {
            kind,
            phase,
            used_at: now,
            was_missed: false,
        };
        state.of(how).insert(Arc::clone(name), channel);
        Some(phase)
    }

    pub(super) fn phase(&self, how: Subscribing, name: &str) -> Option<Phase> {
        let mut state = self.state.lock();
        state.of(how).get(name).map(|channel| channel.phase)
    }

    pub(super) fn is_any_up(&self) -> bool {
        let mut state = self.state.lock();
        state
            .all()
            .any(|(_, _, channel)| matches!(channel.phase, Phase::Up(_)))
    }
}

impl Channels {
    /// Returns why messages don't arrive. A server's refusal comes before a broken connection.
    pub(super) fn polling(&self) -> Option<PollingReason> {
        let mut state = self.state.lock();
        let of = |phase| match phase {
            Phase::Refused { why, .. } => Some((0, why)),
            Phase::Down => Some((1, PollingReason::Disconnected)),
            Phase::Wanted | Phase::Asked | Phase::Up(_) => None,
        };
        let known = state.all().filter_map(|(_, _, channel)| of(channel.phase));
        known.min_by_key(|(rank, _)| *rank).map(|(_, why)| why)
    }
}

/// What the listener does.
impl Channels {
    /// Returns whether there was a listener before this one. Its panic has left the phases as they were.
    pub(super) fn begin_listening(&self) -> bool {
        self.was_listened_to.swap(true, Ordering::Relaxed)
    }

    /// Waits until a waiter needs a channel.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(super) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Pauses after a failure. Waiters do not wait for a subscription in the meantime.
    pub(super) async fn pause(&self, pause: Duration) {
        self.is_paused.store(true, Ordering::Release);
        tokio::time::sleep(pause).await;
        self.is_paused.store(false, Ordering::Release);
    }

    pub(super) fn has_any(&self) -> bool {
        let state = self.state.lock();
        !state.classic.is_empty() || !state.sharded.is_empty()
    }

    /// Returns the channels to subscribe to now.
    pub(super) fn take_wanted(&self) -> Vec<Subscribed> {
        let mut state = self.state.lock();
        let mut wanted = Vec::new();
        for (how, name, channel) in state.all() {
            if matches!(channel.phase, Phase::Wanted | Phase::Down) {
                channel.phase = Phase::Asked;
                wanted.push((how, Arc::clone(name)));
            }
        }
        wanted
    }

    /// Returns the channels that made room for others.
    pub(super) fn take_leaving(&self) -> Vec<Subscribed> {
        std::mem::take(&mut self.state.lock().leaving)
    }

    /// Forgets the channels that no waiter has needed for long. Returns them.
    pub(super) fn take_idle(&self) -> Vec<Subscribed> {
        let now = Clock::System.now();
        let mut state = self.state.lock();
        let mut idle = Vec::new();
        for how in [Subscribing::Classic, Subscribing::Sharded] {
            state.of(how).retain(|name, channel| {
                let is_kept = now.since(channel.used_at) <= channel.kind.limits().idle;
                if !is_kept {
                    idle.push((how, Arc::clone(name)));
                }
                is_kept
            });
        }
        idle
    }

    /// Returns the kind of a channel.
    pub(super) fn kind(&self, how: Subscribing, name: &str) -> Option<ChannelKind> {
        let mut state = self.state.lock();
        state.of(how).get(name).map(|channel| channel.kind)
    }

    /// Sets the phase of a channel. Returns whether it is up now, and a waiter may have missed a message.
    pub(super) fn set(&self, how: Subscribing, name: &str, phase: Phase) -> bool {
        let was_missed = {
            let mut state = self.state.lock();
            state.of(how).get_mut(name).is_some_and(|channel| {
                channel.phase = phase;
                let is_up = matches!(phase, Phase::Up(_));
                is_up && std::mem::take(&mut channel.was_missed)
            })
        };
        self.tell();
        was_missed
    }

    /// Forgets a channel that has moved to another server. Returns whether it was known.
    pub(super) fn forget(&self, how: Subscribing, name: &str) -> bool {
        let forgotten = self.state.lock().of(how).remove(name);
        self.tell();
        forgotten.is_some()
    }

    /// All subscriptions have ended with their connection. The next connection subscribes again.
    pub(super) fn all_down(&self) {
        {
            let mut state = self.state.lock();
            state.leaving.clear();
            for (_, _, channel) in state.all() {
                channel.phase = Phase::Down;
            }
        }
        self.tell();
    }

    /// Wakes the waiters that wait for a subscription.
    fn tell(&self) {
        self.reporter
            .waking(|| self.changed.send_modify(|count| *count += 1));
    }
}

#[cfg(test)]
mod tests;
