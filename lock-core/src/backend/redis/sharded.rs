//! The subscriptions to one node of a cluster: one channel for each slot that has waiters.
//!
//! A sharded channel lives where its slot lives. So the scripts count its subscribers exactly, and a
//! notification costs the cluster a third of a classic one. The connection has a reader of its own: the
//! client library takes the message that a slot has moved for the reply to another command.

use std::sync::Arc;
use std::time::Duration;

use super::channels::{ChannelLimits, Channels, Listener};
use crate::telemetry::Reporter;
use lock_protocol::key::LockKey;
use lock_protocol::route::{HashSlot, channel_tag, slot_of};

mod reader;

pub(super) use reader::listen;

/// An entry in a queue lives for ten minutes at most. A subscribed waiter polls at least each 30 s.
const LIMITS: ChannelLimits = ChannelLimits {
    idle: Duration::from_secs(11 * 60),
    most: 4096,
    without_waiters: Duration::from_secs(60),
};

/// The channels of the slots of one node.
pub(super) struct SlotChannels {
    /// Without the tag of the slot.
    prefix: Arc<str>,
    pub(super) channels: Channels<HashSlot>,
}

impl SlotChannels {
    pub(super) fn new(
        prefix: &Arc<str>,
        listener: &Arc<Listener>,
        reporter: &Arc<Reporter>,
    ) -> Self {
        Self {
            prefix: Arc::clone(prefix),
            channels: Channels::new(LIMITS, listener, reporter),
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
        let name = || self.name(slot);
        match self.channels.up_for(&slot, name, run_id, limit).await {
            Some(name) => (true, name),
            None => (false, Arc::clone(&self.prefix)),
        }
    }

    /// Adds the channel of a slot, and returns its name.
    #[cfg(test)]
    fn touch(&self, slot: HashSlot) -> Arc<str> {
        let touched = self.channels.touch(&slot, || self.name(slot));
        touched.expect("there is room").0
    }

    fn name(&self, slot: HashSlot) -> Arc<str> {
        format!("{}{{{}}}", self.prefix, channel_tag(slot)).into()
    }
}
