//! The subscriptions to one node of a cluster: one channel for each slot that has waiters.
//!
//! A sharded channel lives where its slot lives. So the scripts count its subscribers exactly, and a
//! notification costs the cluster a third of a classic one. The connection has a reader of its own: the
//! client library takes the message that a slot has moved for the reply to another command.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};

use crate::protocol::clock::{Clock, Moment};
use crate::protocol::clock_sync::UNKNOWN_RUN_ID;
use crate::protocol::key::LockKey;
use crate::protocol::route::{HashSlot, channel_tag, slot_of};
use crate::sync::Mutex;
use crate::telemetry::Reporter;

mod reader;

pub(super) use reader::listen;

/// A subscription without a new waiter for this long ends. An entry in a queue lives for ten minutes at
/// most.
const IDLE: Duration = Duration::from_secs(11 * 60);
/// The most subscriptions to one node. Waiters of more slots poll.
const MOST: usize = 4096;

/// The channels of one node.
pub(super) struct SlotChannels {
    /// Without the tag of the slot.
    prefix: Arc<str>,
    state: Mutex<ChannelStates>,
    /// The listener has to subscribe to a channel.
    wanted: Notify,
    /// Counts the changes of the state.
    changed: watch::Sender<u64>,
    reporter: Arc<Reporter>,
}

#[derive(Default)]
struct ChannelStates {
    slots: HashMap<HashSlot, SlotChannel>,
}

struct SlotChannel {
    name: Arc<str>,
    phase: ChannelPhase,
    used_at: Moment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChannelPhase {
    /// A waiter needs it. The listener has not subscribed yet.
    Wanted,
    /// The command was sent.
    Asked,
    /// Subscribed to the server process with this run id.
    Up(u64),
    /// The connection broke, or could not be made. Waiters poll until the next one has subscribed.
    Down,
    /// The server refused it. Waiters poll.
    Refused,
}

impl SlotChannels {
    pub(super) fn new(prefix: &Arc<str>, reporter: &Arc<Reporter>) -> Self {
        Self {
            reporter: Arc::clone(reporter),
            prefix: Arc::clone(prefix),
            state: Mutex::default(),
            wanted: Notify::new(),
            changed: watch::Sender::new(0),
        }
    }

    /// Returns whether notifications for this key arrive from the server process with this run id, and
    /// the channel. Subscribes if no waiter has needed it yet, which takes at most `limit`.
    pub(super) async fn is_up_for(
        &self,
        key: &LockKey,
        run_id: u64,
        limit: Duration,
    ) -> (bool, Arc<str>) {
        self.is_slot_up_for(slot_of(key.as_str().as_bytes()), run_id, limit)
            .await
    }

    pub(super) async fn is_slot_up_for(
        &self,
        slot: HashSlot,
        run_id: u64,
        limit: Duration,
    ) -> (bool, Arc<str>) {
        let Some((name, phase)) = self.touch(slot) else {
            return (false, Arc::clone(&self.prefix));
        };
        let is_up = match phase {
            _ if run_id == UNKNOWN_RUN_ID => false,
            ChannelPhase::Up(known) => known == run_id,
            ChannelPhase::Down | ChannelPhase::Refused => false,
            ChannelPhase::Wanted | ChannelPhase::Asked => {
                let mut changes = self.changed.subscribe();
                self.wanted.notify_one();
                let known = changes.wait_for(|_| {
                    !matches!(
                        self.phase(slot),
                        Some(ChannelPhase::Wanted | ChannelPhase::Asked)
                    )
                });
                let _known_or_timed_out = tokio::time::timeout(limit, known).await;
                self.phase(slot) == Some(ChannelPhase::Up(run_id))
            }
        };
        (is_up, name)
    }

    pub(super) fn is_any_up(&self) -> bool {
        let state = self.state.lock();
        let mut channels = state.slots.values();
        channels.any(|channel| matches!(channel.phase, ChannelPhase::Up(_)))
    }

    /// Returns the channel of a slot for a waiter; `None` if there are too many.
    fn touch(&self, slot: HashSlot) -> Option<(Arc<str>, ChannelPhase)> {
        let now = Clock::System.now();
        {
            let mut state = self.state.lock();
            if let Some(channel) = state.slots.get_mut(&slot) {
                channel.used_at = now;
                return Some((Arc::clone(&channel.name), channel.phase));
            }
            if state.slots.len() >= MOST {
                return None;
            }
        }
        // The search for the tag takes some milliseconds at most.
        let name: Arc<str> = format!("{}{{{}}}", self.prefix, channel_tag(slot)).into();
        let mut state = self.state.lock();
        let channel = state.slots.entry(slot).or_insert_with(|| SlotChannel {
            name,
            phase: ChannelPhase::Wanted,
            used_at: now,
        });
        Some((Arc::clone(&channel.name), channel.phase))
    }

    fn phase(&self, slot: HashSlot) -> Option<ChannelPhase> {
        let state = self.state.lock();
        state.slots.get(&slot).map(|channel| channel.phase)
    }

    /// Returns the channels to subscribe to now.
    fn take_wanted(&self) -> Vec<(HashSlot, Arc<str>)> {
        let mut state = self.state.lock();
        let mut wanted = Vec::new();
        for (slot, channel) in &mut state.slots {
            if matches!(channel.phase, ChannelPhase::Wanted | ChannelPhase::Down) {
                channel.phase = ChannelPhase::Asked;
                wanted.push((*slot, Arc::clone(&channel.name)));
            }
        }
        wanted
    }

    /// Forgets the channels that no waiter has needed for long. Returns their names.
    fn take_idle(&self) -> Vec<Arc<str>> {
        let now = Clock::System.now();
        let mut state = self.state.lock();
        let idle: Vec<_> = state
            .slots
            .iter()
            .filter(|(_, channel)| now.since(channel.used_at) > IDLE)
            .map(|(slot, _)| *slot)
            .collect();
        let removed = idle.iter().filter_map(|slot| state.slots.remove(slot));
        removed.map(|channel| channel.name).collect()
    }

    /// Wakes the waiters that wait for a subscription.
    fn tell(&self) {
        self.reporter
            .waking(|| self.changed.send_modify(|count| *count += 1));
    }

    fn has_any(&self) -> bool {
        !self.state.lock().slots.is_empty()
    }

    /// Sets the phase of the channel with this name. Returns whether it is known.
    fn set_phase(&self, name: &str, phase: ChannelPhase) -> bool {
        let is_known = {
            let mut state = self.state.lock();
            let known = state.slots.values_mut().find(|it| &*it.name == name);
            known.map(|channel| channel.phase = phase).is_some()
        };
        self.tell();
        is_known
    }

    /// Forgets a channel whose slot has moved. Returns whether it was known.
    fn forget(&self, name: &str) -> bool {
        let forgotten = {
            let mut state = self.state.lock();
            let before = state.slots.len();
            state.slots.retain(|_, channel| &*channel.name != name);
            state.slots.len() < before
        };
        self.tell();
        forgotten
    }

    /// All subscriptions have ended with their connection. The next connection subscribes again.
    fn all_down(&self) {
        {
            let mut state = self.state.lock();
            for channel in state.slots.values_mut() {
                channel.phase = ChannelPhase::Down;
            }
        }
        self.tell();
    }
}
