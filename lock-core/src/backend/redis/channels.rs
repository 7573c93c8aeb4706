//! The channels of one connection: which of them waiters need, and which are subscribed.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, watch};

use crate::sync::Mutex;
use crate::telemetry::Reporter;
use lock_protocol::clock::{Clock, Moment};
use lock_protocol::clock_sync::UNKNOWN_RUN_ID;

/// The pause after a temporary error. A server that loads its data, for example, is asked again soon.
pub(super) const AFTER_ERROR: Duration = Duration::from_secs(1);

/// What waiters and the listener of a connection tell each other.
#[derive(Debug, Default)]
pub(super) struct Listener {
    wanted: Notify,
    is_paused: AtomicBool,
}

impl Listener {
    /// Wakes the listener, because a waiter needs a channel.
    pub(super) fn want(&self) {
        self.wanted.notify_one();
    }

    /// Waits until a waiter needs a channel.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(super) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Pauses after a failure. Meanwhile waiters do not wait for a subscription.
    pub(super) async fn pause(&self, pause: Duration) {
        self.is_paused.store(true, Ordering::Release);
        tokio::time::sleep(pause).await;
        self.is_paused.store(false, Ordering::Release);
    }

    pub(super) fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::Acquire)
    }
}

/// How many channels there may be, and how long one stays without a waiter.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChannelLimits {
    /// A subscription without a new waiter for this long ends.
    pub(super) idle: Duration,
    /// The most subscriptions. Waiters of more channels poll.
    pub(super) most: usize,
    /// A channel that was not used for longer has no waiter, and may make room for another one.
    pub(super) without_waiters: Duration,
}

/// The channels of one connection, by what their waiters wait for.
pub(super) struct Channels<K> {
    limits: ChannelLimits,
    state: Mutex<ChannelStates<K>>,
    listener: Arc<Listener>,
    /// Counts the changes of the state.
    changed: watch::Sender<u64>,
    reporter: Arc<Reporter>,
}

struct ChannelStates<K> {
    channels: HashMap<K, ChannelState>,
    /// Channels that made room for others. The listener has to unsubscribe.
    leaving: Vec<Arc<str>>,
}

struct ChannelState {
    name: Arc<str>,
    phase: ChannelPhase,
    used_at: Moment,
    /// A waiter has seen that it was not subscribed, and may have missed a message.
    was_missed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChannelPhase {
    /// A waiter needs it. The listener has not subscribed yet.
    Wanted,
    /// The command was sent.
    Asked,
    /// Subscribed to the server process with this run id.
    Up(u64),
    /// The connection broke, or could not be made. Waiters poll until the next one has subscribed.
    Down,
    /// The server refused it. Waiters poll, and the first of them after this moment makes the listener try again.
    Refused { until: Moment },
}

impl<K: Clone + Eq + Hash> Channels<K> {
    /// The listener may listen to other channels too.
    pub(super) fn new(
        limits: ChannelLimits,
        listener: &Arc<Listener>,
        reporter: &Arc<Reporter>,
    ) -> Self {
        Self {
            limits,
            reporter: Arc::clone(reporter),
            state: Mutex::new(ChannelStates {
                channels: HashMap::new(),
                leaving: Vec::new(),
            }),
            listener: Arc::clone(listener),
            changed: watch::Sender::new(0),
        }
    }

    /// Returns the channel, if messages on it arrive from the server process with this run id. Subscribes if no
    /// waiter has needed it yet, which takes at most `limit`.
    pub(super) async fn up_for(
        &self,
        id: &K,
        name: impl FnOnce() -> Arc<str>,
        run_id: u64,
        limit: Duration,
    ) -> Option<Arc<str>> {
        let (name, phase) = self.touch(id, name)?;
        let is_up = match phase {
            _ if run_id == UNKNOWN_RUN_ID => false,
            ChannelPhase::Up(known) => known == run_id,
            ChannelPhase::Down | ChannelPhase::Refused { .. } => false,
            ChannelPhase::Wanted | ChannelPhase::Asked => {
                let mut changes = self.changed.subscribe();
                self.listener.want();
                let known = changes.wait_for(|_| {
                    !matches!(
                        self.phase(id),
                        Some(ChannelPhase::Wanted | ChannelPhase::Asked)
                    )
                });
                let _known_or_timed_out = tokio::time::timeout(limit, known).await;
                self.phase(id) == Some(ChannelPhase::Up(run_id))
            }
        };
        if !is_up {
            self.miss(id, run_id);
        }
        is_up.then_some(name)
    }

    /// Records that a waiter does not rely on the channel.
    fn miss(&self, id: &K, run_id: u64) {
        let mut state = self.state.lock();
        if let Some(channel) = state.channels.get_mut(id)
            && channel.phase != ChannelPhase::Up(run_id)
        {
            channel.was_missed = true;
        }
    }

    /// Returns whether messages arrive from the server process with this run id, without any wait.
    pub(super) fn is_up(&self, id: &K, run_id: u64) -> bool {
        self.phase(id) == Some(ChannelPhase::Up(run_id))
    }

    /// As [`is_up`](Self::is_up). The channel stays subscribed, if it is, for as long as after a new waiter.
    pub(super) fn keep_if_up(&self, id: &K, run_id: u64) -> bool {
        let mut state = self.state.lock();
        let up = state.channels.get_mut(id);
        let up = up.filter(|channel| channel.phase == ChannelPhase::Up(run_id));
        up.map(|channel| channel.used_at = Clock::System.now())
            .is_some()
    }

    pub(super) fn is_any_up(&self) -> bool {
        let state = self.state.lock();
        let mut channels = state.channels.values();
        channels.any(|channel| matches!(channel.phase, ChannelPhase::Up(_)))
    }

    /// Returns a channel for a waiter; `None` if there are too many.
    pub(super) fn touch(
        &self,
        id: &K,
        name: impl FnOnce() -> Arc<str>,
    ) -> Option<(Arc<str>, ChannelPhase)> {
        let now = Clock::System.now();
        {
            let mut state = self.state.lock();
            if let Some(channel) = state.channels.get_mut(id) {
                channel.used_at = now;
                if matches!(channel.phase, ChannelPhase::Refused { until } if until <= now) {
                    channel.phase = ChannelPhase::Wanted;
                }
                return Some((Arc::clone(&channel.name), channel.phase));
            }
            if state.channels.len() >= self.limits.most && !self.make_room(&mut state, now) {
                return None;
            }
        }
        // The name of a slot's channel takes some milliseconds at most.
        let name = name();
        // The next connection subscribes to those that are down, too.
        let phase = if self.listener.is_paused() {
            ChannelPhase::Down
        } else {
            ChannelPhase::Wanted
        };
        let mut state = self.state.lock();
        let channel = state.channels.entry(id.clone());
        let channel = channel.or_insert_with(|| ChannelState {
            name,
            phase,
            used_at: now,
            was_missed: false,
        });
        Some((Arc::clone(&channel.name), channel.phase))
    }

    pub(super) fn phase(&self, id: &K) -> Option<ChannelPhase> {
        let state = self.state.lock();
        state.channels.get(id).map(|channel| channel.phase)
    }

    /// Returns the channels to subscribe to now.
    pub(super) fn take_wanted(&self) -> Vec<Arc<str>> {
        let mut state = self.state.lock();
        let mut wanted = Vec::new();
        for channel in state.channels.values_mut() {
            if matches!(channel.phase, ChannelPhase::Wanted | ChannelPhase::Down) {
                channel.phase = ChannelPhase::Asked;
                wanted.push(Arc::clone(&channel.name));
            }
        }
        wanted
    }

    /// Returns the channels that made room for others.
    pub(super) fn take_leaving(&self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.state.lock().leaving)
    }

    /// Forgets the channels that no waiter has needed for long. Returns their names.
    pub(super) fn take_idle(&self) -> Vec<Arc<str>> {
        let now = Clock::System.now();
        let mut state = self.state.lock();
        let idle = state
            .channels
            .extract_if(|_, channel| now.since(channel.used_at) > self.limits.idle);
        idle.map(|(_, channel)| channel.name).collect()
    }

    pub(super) fn has_any(&self) -> bool {
        !self.state.lock().channels.is_empty()
    }

    /// Sets the phase of the channels with these names. Returns those that are up now, and whose waiters may have
    /// missed a message.
    pub(super) fn set_phases(&self, names: &[&str], phase: ChannelPhase) -> Vec<K> {
        let names: HashSet<&str> = names.iter().copied().collect();
        let mut missed = Vec::new();
        {
            let mut state = self.state.lock();
            for (id, channel) in &mut state.channels {
                if names.contains(&*channel.name) {
                    channel.phase = phase;
                    let is_up = matches!(phase, ChannelPhase::Up(_));
                    if is_up && std::mem::take(&mut channel.was_missed) {
                        missed.push(id.clone());
                    }
                }
            }
        }
        self.tell();
        missed
    }

    /// Returns whether there is a channel with this name.
    #[cfg(feature = "cluster")]
    pub(super) fn has(&self, name: &str) -> bool {
        let state = self.state.lock();
        state.channels.values().any(|it| &*it.name == name)
    }

    /// Forgets a channel that has moved to another server. Returns whether it was known.
    pub(super) fn forget(&self, name: &str) -> bool {
        let forgotten = {
            let mut state = self.state.lock();
            let before = state.channels.len();
            state.channels.retain(|_, channel| &*channel.name != name);
            state.channels.len() < before
        };
        self.tell();
        forgotten
    }

    /// All subscriptions have ended with their connection. The next connection subscribes again.
    pub(super) fn all_down(&self) {
        {
            let mut state = self.state.lock();
            state.leaving.clear();
            for channel in state.channels.values_mut() {
                channel.phase = ChannelPhase::Down;
            }
        }
        self.tell();
    }

    /// Wakes the waiters that wait for a subscription.
    fn tell(&self) {
        self.reporter
            .waking(|| self.changed.send_modify(|count| *count += 1));
    }

    /// Forgets the channel that was idle longest, if it has no waiter. Returns whether there was one.
    fn make_room(&self, state: &mut ChannelStates<K>, now: Moment) -> bool {
        let idle = state.channels.iter().min_by_key(|(_, it)| it.used_at);
        let idle = idle.filter(|(_, it)| now.since(it.used_at) > self.limits.without_waiters);
        let Some(id) = idle.map(|(id, _)| id.clone()) else {
            return false;
        };
        if let Some(channel) = state.channels.remove(&id) {
            state.leaving.push(channel.name);
        }
        true
    }

    /// Adds a channel without a limit.
    #[cfg(test)]
    pub(super) fn insert(&self, id: K, name: Arc<str>) {
        let channel = ChannelState {
            name,
            phase: ChannelPhase::Wanted,
            used_at: Clock::System.now(),
            was_missed: false,
        };
        self.state.lock().channels.insert(id, channel);
    }

    /// Makes the use of a channel longer ago.
    #[cfg(test)]
    pub(super) fn age(&self, id: &K, by: Duration) {
        let mut state = self.state.lock();
        let channel = state.channels.get_mut(id).unwrap();
        let since_boot = channel.used_at.since(Moment::from_nanos(0));
        channel.used_at = Moment::from_nanos(0).plus(since_boot.saturating_sub(by));
    }
}

#[cfg(test)]
mod tests;
