//! What a reader sees of a lock state.

use super::{Expiring, KeyValue, LockState};
use crate::protocol::clock::ServerMs;
use crate::protocol::inspection::{
    FoundText, INSPECTED_WAITERS, InspectReply, KeyContent, ReadTime,
};

impl LockState {
    /// Reads the lock and its first waiters. Unlike a command, it does not remove what has expired.
    pub(crate) fn inspect(&self, time: ReadTime) -> InspectReply {
        let now_ms = time.server_ms;
        let queue = self.queue.as_ref().filter(|queue| queue.is_alive(now_ms));
        let entries = queue.iter().flat_map(|queue| queue.value.values());
        let total = queue.map_or(0, |queue| queue.value.len());
        InspectReply {
            time,
            content: self.content(now_ms),
            total: u64::try_from(total).unwrap_or(u64::MAX),
            entries: entries
                .take(INSPECTED_WAITERS)
                .map(ToString::to_string)
                .collect(),
        }
    }

    /// Reads the key.
    pub(crate) fn content(&self, now_ms: ServerMs) -> KeyContent {
        match self.key.as_ref().filter(|key| key.is_alive(now_ms)) {
            None => KeyContent::Free,
            Some(Expiring {
                value: KeyValue::OtherType(found),
                ..
            }) => KeyContent::OtherType {
                kind: (*found).to_owned(),
                digest: String::new(),
            },
            Some(key) => {
                let text = key.value.text();
                KeyContent::Text(FoundText::new(key.remaining_ms(now_ms), text.into()))
            }
        }
    }
}
