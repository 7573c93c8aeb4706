//! The queue of a lock: entries in the order of arrival, and the scan for the next owner.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{
    AcquireCommand, Env, Expiring, LONGEST_HOLDER_MS, LockState, QUEUE_LIFE_MS, RawHolder,
    SCANNED_PER_CALL,
};
use crate::protocol::clock::ServerMs;
use crate::protocol::kind::Kind;
use crate::protocol::owner_id::OwnerId;
use crate::protocol::wire::{EntryKind, Mode, QueueEntry};

/// The owner to which one call grants the lock.
pub(super) struct NextOwner {
    pub(super) owner_id: OwnerId,
    pub(super) lease_ms: u64,
    pub(super) label: Arc<str>,
    /// The channel for the notification. `None` for the caller, which reads the reply, and for waiters
    /// that poll.
    pub(super) channel: Option<Arc<str>>,
}

/// The outcome of scanning the queue of a free key.
#[derive(Default)]
pub(super) struct QueueScan {
    pub(super) next_owner: Option<NextOwner>,
    /// How long the key stays free for foreign clients.
    pub(super) grace_ms: u64,
    /// Whether the first waiter needs a notification: no waiter got the key, and a living waiter may
    /// be in the queue.
    pub(super) notify_head: bool,
    pub(super) more: bool,
}

impl NextOwner {
    pub(super) fn caller(command: &AcquireCommand<'_>) -> Self {
        Self {
            owner_id: command.owner_id,
            lease_ms: command.ttl_ms,
            label: command.label.into(),
            channel: None,
        }
    }
}

impl LockState {
    /// Adds an entry at the end of the queue, or in the place of an earlier entry of the same owner
    /// id. Returns whether this very entry was in the queue already.
    pub(super) fn enqueue(&mut self, entry: &QueueEntry, earlier: &[QueueEntry]) -> bool {
        let queue = self.queue.get_or_insert_with(|| Expiring {
            value: BTreeMap::new(),
            expires_ms: None,
        });
        let was_queued = score_of(&queue.value, entry);
        let mut score = queue.value.last_key_value().map_or(1, |(last, _)| last + 1);
        for old in earlier {
            if let Some(was_queued) = score_of(&queue.value, old) {
                score = score.min(was_queued);
                queue.value.remove(&was_queued);
            }
        }
        if was_queued.is_none() {
            queue.value.insert(score, entry.clone());
        }
        was_queued.is_some()
    }

    /// Removes expired entries while the key is held, if the head has expired: then the next entry has
    /// to become the head. Expired entries behind a live head do no harm, and looking for them would
    /// make each poll cost ten times as much. Entries whose channel has no subscriber stay: the waiter
    /// may be reconnecting. Returns whether it removed the head.
    pub(super) fn remove_expired_entries(&mut self, own: &QueueEntry, now_ms: ServerMs) -> bool {
        let Some(queue) = &mut self.queue else {
            return false;
        };
        let is_expired = |entry: &QueueEntry| entry != own && now_ms > entry.expires_at_ms;
        let head = queue.value.values().next();
        if !head.is_some_and(is_expired) {
            return false;
        }
        let scanned = queue.value.iter().take(SCANNED_PER_CALL);
        let expired = scanned.filter(|(_, entry)| is_expired(entry));
        let expired: Vec<u64> = expired.map(|(score, _)| *score).collect();
        for score in &expired {
            queue.value.remove(score);
        }
        true
    }

    pub(super) fn leave_queue(&mut self, entries: &[QueueEntry]) -> bool {
        let Some(queue) = &mut self.queue else {
            return false;
        };
        let before = queue.value.len();
        for entry in entries {
            if let Some(score) = score_of(&queue.value, entry) {
                queue.value.remove(&score);
            }
        }
        let left = before > queue.value.len();
        self.forget_empty_queue();
        left
    }

    pub(super) fn forget_empty_queue(&mut self) {
        if self
            .queue
            .as_ref()
            .is_some_and(|queue| queue.value.is_empty())
        {
            self.queue = None;
        }
    }

    /// Finds the next owner of a free key that has a queue. Without one, the result says how long the
    /// key stays free for foreign clients.
    pub(super) fn grant_next(
        &mut self,
        caller: Option<&AcquireCommand<'_>>,
        env: &Env<'_>,
    ) -> QueueScan {
        if let Some(grace) = &self.grace {
            return QueueScan {
                grace_ms: grace.remaining_ms(env.now_ms()).unwrap_or(0),
                ..QueueScan::default()
            };
        }
        let mut scan = self.next_in_line(caller, env);
        if scan.next_owner.is_none() && !scan.notify_head {
            // No waiter is alive, so a caller that makes one attempt gets the key.
            let tries_once = caller.filter(|command| command.entry.is_none());
            scan.next_owner = tries_once.map(NextOwner::caller);
        }
        scan
    }

    /// Finds the first living waiter, and removes the dead entries before it.
    pub(super) fn next_in_line(
        &mut self,
        caller: Option<&AcquireCommand<'_>>,
        env: &Env<'_>,
    ) -> QueueScan {
        let mut scan = QueueScan::default();
        let mut dead = 0;
        while let Some(first) = self
            .queue
            .as_mut()
            .and_then(|queue| queue.value.first_entry())
        {
            if dead == SCANNED_PER_CALL {
                scan.more = true;
                scan.notify_head = true;
                break;
            }
            let head = first.get();
            let calling = caller.filter(|command| command.entry == Some(head));
            if calling.is_none() && !is_alive(head, env) {
                first.remove();
                dead += 1;
                continue;
            }
            if head.kind != EntryKind::Known(Kind::Exclusive) {
                // The waiter's own version knows this kind, and acquires the key with a poll.
                scan.notify_head = true;
                break;
            }
            let head = first.remove();
            scan.next_owner = Some(match calling {
                Some(command) => NextOwner {
                    owner_id: head.owner_id,
                    lease_ms: command.ttl_ms,
                    label: head.label,
                    channel: None,
                },
                None => NextOwner {
                    owner_id: head.owner_id,
                    lease_ms: head.lease_ms,
                    label: head.label,
                    channel: (head.mode == Mode::Subscribed).then_some(head.channel),
                },
            });
            break;
        }
        self.forget_empty_queue();
        scan
    }

    pub(super) fn record_poll(
        &mut self,
        entry: &QueueEntry,
        holder: &RawHolder,
        now_ms: ServerMs,
    ) -> u64 {
        let Some(queue) = &mut self.queue else {
            return 0;
        };
        let held_ms = holder.remaining_ms.unwrap_or(0).min(LONGEST_HOLDER_MS);
        queue.expires_ms = Some(now_ms.plus(held_ms).plus(QUEUE_LIFE_MS));
        let before = queue
            .value
            .values()
            .take_while(|waits| *waits != entry)
            .count();
        u64::try_from(before).unwrap_or(u64::MAX)
    }
}

/// An entry is dead when it has expired, or when it needs a notification and its channel has no
/// subscriber.
pub(super) fn is_alive(entry: &QueueEntry, env: &Env<'_>) -> bool {
    env.now_ms() <= entry.expires_at_ms
        && (entry.mode == Mode::Polling || (env.has_subscriber)(&entry.channel))
}

pub(super) fn score_of(queue: &BTreeMap<u64, QueueEntry>, entry: &QueueEntry) -> Option<u64> {
    queue
        .iter()
        .find_map(|(score, waits)| (waits == entry).then_some(*score))
}
