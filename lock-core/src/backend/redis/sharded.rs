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
/// A subscribed waiter polls at least each 30 s. So a channel that was not used for longer has no waiter, and may make
/// room for another one.
const WITHOUT_WAITERS: Duration = Duration::from_secs(60);
/// The pause after a temporary error. A server that loads its data, for example, is asked again soon.
const AFTER_ERROR: Duration = Duration::from_secs(1);

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
    /// Channels that made room for others. The listener has to unsubscribe.
    leaving: Vec<Arc<str>>,
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
    /// The server refused it. Waiters poll, and the first of them after this moment makes the listener try again.
    Refused { until: Moment },
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
            ChannelPhase::Down | ChannelPhase::Refused { .. } => false,
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
                if matches!(channel.phase, ChannelPhase::Refused { until } if until <= now) {
                    channel.phase = ChannelPhase::Wanted;
                }
                return Some((Arc::clone(&channel.name), channel.phase));
            }
            if state.slots.len() >= MOST && !state.make_room(now) {
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

    /// Returns the channels that made room for others.
    fn take_leaving(&self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.state.lock().leaving)
    }

    /// Forgets the channels that no waiter has needed for long. Returns their names.
    fn take_idle(&self) -> Vec<Arc<str>> {
        let now = Clock::System.now();
        let mut state = self.state.lock();
        let idle = state
            .slots
            .extract_if(|_, channel| now.since(channel.used_at) > IDLE);
        idle.map(|(_, channel)| channel.name).collect()
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
            state.leaving.clear();
            for channel in state.slots.values_mut() {
                channel.phase = ChannelPhase::Down;
            }
        }
        self.tell();
    }
}

impl ChannelStates {
    /// Forgets the channel that was idle longest, if it has no waiter. Returns whether there was one.
    fn make_room(&mut self, now: Moment) -> bool {
        let idle = self.slots.iter().min_by_key(|(_, it)| it.used_at);
        let idle = idle.filter(|(_, it)| now.since(it.used_at) > WITHOUT_WAITERS);
        let Some(slot) = idle.map(|(slot, _)| *slot) else {
            return false;
        };
        if let Some(channel) = self.slots.remove(&slot) {
            self.leaving.push(channel.name);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channels() -> SlotChannels {
        SlotChannels::new(&"lk1:p:u".into(), &Arc::default())
    }

    /// Makes the use of a channel longer ago.
    fn age(channels: &SlotChannels, slot: HashSlot, by: Duration) {
        let mut state = channels.state.lock();
        let channel = state.slots.get_mut(&slot).unwrap();
        let since_boot = channel.used_at.since(Moment::from_nanos(0));
        channel.used_at = Moment::from_nanos(0).plus(since_boot.saturating_sub(by));
    }

    #[test]
    fn channel_that_was_idle_longest_makes_room() {
        let channels = channels();
        let most = HashSlot::try_from(MOST).unwrap();
        let name: Arc<str> = "name".into();
        for slot in 0..most {
            let channel = SlotChannel {
                name: Arc::clone(&name),
                phase: ChannelPhase::Wanted,
                used_at: Clock::System.now(),
            };
            channels.state.lock().slots.insert(slot, channel);
        }
        // All of them may have waiters.
        assert!(channels.touch(most).is_none());
        let minute = WITHOUT_WAITERS + Duration::from_secs(1);
        age(&channels, 7, minute);
        age(&channels, 8, minute * 2);
        assert!(channels.touch(most).is_some());
        assert_eq!(
            (channels.phase(8), channels.take_leaving().len()),
            (None, 1)
        );
        assert!(channels.phase(7).is_some());
        assert!(channels.touch(most + 1).is_some());
        assert!(channels.touch(most + 2).is_none());
    }

    #[test]
    fn refused_channel_is_tried_again_after_a_pause() {
        let channels = channels();
        let (name, _) = channels.touch(7).unwrap();
        assert_eq!(channels.take_wanted().len(), 1);
        let now = Clock::System.now();
        let refused = ChannelPhase::Refused {
            until: now.plus(Duration::from_secs(10)),
        };
        assert!(channels.set_phase(&name, refused));
        assert_eq!(channels.touch(7), Some((Arc::clone(&name), refused)));
        assert!(channels.take_wanted().is_empty());
        channels.set_phase(&name, ChannelPhase::Refused { until: now });
        assert_eq!(channels.touch(7), Some((name, ChannelPhase::Wanted)));
        assert_eq!(channels.take_wanted().len(), 1);
    }
}
