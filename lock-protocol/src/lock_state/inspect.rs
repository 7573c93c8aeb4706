//! What a reader sees of a lock state.

use super::{Expiring, KeyValue, LockState};
use crate::clock::ServerMs;
use crate::inspection::{
    FoundText, INSPECTED_MEMBERS, INSPECTED_WAITERS, InspectReply, KeyContent, ReadTime,
    SeenMember, SeenMembers,
};
use crate::wire::SHARED;

impl LockState {
    /// Reads the lock, its holders and its first waiters. Unlike a command, it does not remove what has expired.
    pub fn inspect(&self, time: ReadTime) -> InspectReply {
        let now_ms = time.server_ms;
        let queue = self.queue.as_ref().filter(|queue| queue.is_alive(now_ms));
        let entries = queue.iter().flat_map(|queue| queue.value.values());
        let total = queue.map_or(0, |queue| queue.value.len());
        let content = self.content(now_ms);
        let is_shared =
            matches!(&content, KeyContent::Text(found) if found.holder.value.starts_with(SHARED));
        InspectReply {
            time,
            members: if is_shared {
                self.seen_members(now_ms)
            } else {
                SeenMembers::default()
            },
            content,
            total: u64::try_from(total).unwrap_or(u64::MAX),
            entries: entries
                .take(INSPECTED_WAITERS)
                .map(ToString::to_string)
                .collect(),
        }
    }

    /// Reads the members that are alive, in the order of a zset: by their ends, then by their texts.
    fn seen_members(&self, now_ms: ServerMs) -> SeenMembers {
        let holders = self.holders.as_ref();
        let holders = holders.filter(|holders| holders.is_alive(now_ms));
        let mut members: Vec<_> = holders
            .iter()
            .flat_map(|holders| &holders.value)
            .filter(|(_, end)| now_ms <= **end)
            .map(|(member, end)| (*end, member.to_string()))
            .collect();
        members.sort_unstable();
        SeenMembers {
            total: u64::try_from(members.len()).unwrap_or(u64::MAX),
            first: members
                .into_iter()
                .take(INSPECTED_MEMBERS)
                .map(|(end, text)| SeenMember {
                    text,
                    remaining_ms: Some(end.since(now_ms)),
                })
                .collect(),
        }
    }

    /// Reads the key.
    pub fn content(&self, now_ms: ServerMs) -> KeyContent {
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
