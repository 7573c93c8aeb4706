//! The queue of a lock: entries in the order of arrival, and the scan for the next owner.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{
    AcquireCommand, Env, Expiring, LONGEST_HOLDER_MS, LockState, QUEUE_LIFE_MS, RawHolder,
    SCANNED_PER_CALL,
};
use crate::clock::ServerMs;
use crate::fencing_token::FencingToken;
use crate::kind::Kind;
use crate::owner_id::OwnerId;
use crate::wire::{EntryKind, Mode, QueueEntry};

/// The owner to which one call grants the lock.
pub(super) struct NextOwner {
    pub(super) owner_id: OwnerId,
    pub(super) lease_ms: u64,
    pub(super) label: Arc<str>,
    pub(super) kind: Kind,
    /// The channel for the notification. `None` for the caller, which reads the reply, and for waiters
    /// that poll.
    pub(super) channel: Option<Arc<str>>,
}

/// A grant, and its token.
pub(super) struct Granted {
    pub(super) to: NextOwner,
    pub(super) token: FencingToken,
}

/// How an entry came into the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    New,
    /// The owner id was there with another entry.
    InPlaceOfAnEarlier,
    /// It was there already.
    Again,
}

/// The outcome of scanning the queue of a key that is free or shared.
#[derive(Default)]
pub(super) struct QueueScan {
    /// The new holders, in the order of their grants.
    pub(super) granted: Vec<Granted>,
    /// How long the key stays free for foreign clients.
    pub(super) grace_ms: u64,
    /// Whether the queue may have another head than before.
    pub(super) head_changed: bool,
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
            kind: command.kind,
            channel: None,
        }
    }
}

impl LockState {
    /// Adds an entry at the end of the queue, or in the place of an earlier entry of the same owner
    /// id.
    pub(super) fn enqueue(&mut self, entry: &QueueEntry, earlier: &[QueueEntry]) -> Arrival {
        let queue = self.queue.get_or_insert_with(|| Expiring {
            value: BTreeMap::new(),
            expires_ms: None,
        });
        let was_queued = score_of(&queue.value, entry);
        let mut score = queue.value.last_key_value().map_or(1, |(last, _)| last + 1);
        let mut arrival = Arrival::New;
        for old in earlier {
            if let Some(was_queued) = score_of(&queue.value, old) {
                score = score.min(was_queued);
                queue.value.remove(&was_queued);
                arrival = Arrival::InPlaceOfAnEarlier;
            }
        }
        if was_queued.is_some() {
            return Arrival::Again;
        }
        queue.value.insert(score, entry.clone());
        arrival
    }

    /// Returns whether the caller arrives at a queue that has as many waiters as it accepts.
    pub(super) fn is_full_for(&self, arrival: Arrival, command: &AcquireCommand<'_>) -> bool {
        match (arrival, command.entry, command.max_queue) {
            (Arrival::New, Some(entry), Some(most)) => self.rank(entry) >= u64::from(most),
            _ => false,
        }
    }

    /// Removes expired entries while the key is held, if the head has expired: then the next entry has
    /// to become the head. Also if the queue is full, because they don't count then. Expired entries behind a
    /// live head do no harm otherwise, and looking for them would make each poll cost ten times as much. Entries
    /// whose channel has no subscriber stay: the waiter may be reconnecting. Returns whether it removed the head.
    pub(super) fn remove_expired_entries(
        &mut self,
        own: &QueueEntry,
        is_full: bool,
        now_ms: ServerMs,
    ) -> bool {
        let Some(queue) = &mut self.queue else {
            return false;
        };
        let is_expired = |entry: &QueueEntry| entry != own && now_ms > entry.expires_at_ms;
        let head = queue.value.values().next();
        let has_head_expired = head.is_some_and(is_expired);
        if !has_head_expired && !is_full {
            return false;
        }
        let scanned = queue.value.iter().take(SCANNED_PER_CALL);
        let expired = scanned.filter(|(_, entry)| is_expired(entry));
        let expired: Vec<u64> = expired.map(|(score, _)| *score).collect();
        for score in &expired {
            queue.value.remove(score);
        }
        has_head_expired
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

    /// Lets in the waiters at the front of the queue, as far as they can hold the key together, and removes the
    /// dead ones among them. A caller that makes one attempt comes last. Counters get this floor and lead.
    ///
    /// Dead waiters are removed also where they could not be let in: a dead writer must not keep readers out.
    pub(super) fn grant_next(
        &mut self,
        caller: Option<&AcquireCommand<'_>>,
        (floor_us, lead_us): (u64, u64),
        env: &Env<'_>,
    ) -> QueueScan {
        let mut scan = QueueScan::default();
        let grace = self.grace.as_ref().filter(|_| self.key.is_none());
        if let Some(grace) = grace {
            scan.grace_ms = grace.remaining_ms(env.now_ms()).unwrap_or(0);
            return scan;
        }
        let mut scanned = 0;
        while self.may_grant() {
            let Some(head) = self
                .queue
                .as_ref()
                .and_then(|queue| queue.value.values().next())
            else {
                // No waiter is left, so a caller that makes one attempt gets the key.
                let tries_once = caller.filter(|command| command.entry.is_none());
                if let Some(command) = tries_once.filter(|command| self.fits(command.kind)) {
                    let to = NextOwner::caller(command);
                    let token = self.grant(&to, floor_us, lead_us, env);
                    scan.granted.push(Granted { to, token });
                }
                break;
            };
            if scanned == SCANNED_PER_CALL {
                scan.more = true;
                scan.notify_head = true;
                break;
            }
            let calling = caller.filter(|command| command.entry == Some(head));
            if calling.is_none() && !is_alive(head, env) {
                self.remove_head();
                scan.head_changed |= self.key.is_some();
                scanned += 1;
                continue;
            }
            let EntryKind::Known(kind) = head.kind else {
                // The waiter's own version knows this kind, and acquires the key with a poll.
                scan.notify_head |= self.key.is_none();
                break;
            };
            if !self.fits(kind) {
                break;
            }
            let Some(head) = self.remove_head() else {
                break;
            };
            scanned += 1;
            let to = NextOwner {
                owner_id: head.owner_id,
                lease_ms: calling.map_or(head.lease_ms, |command| command.ttl_ms),
                label: head.label,
                kind,
                channel: (calling.is_none() && head.mode == Mode::Subscribed)
                    .then_some(head.channel),
            };
            let token = self.grant(&to, floor_us, lead_us, env);
            scan.granted.push(Granted { to, token });
        }
        scan
    }

    /// Removes the dead waiters in front of a key whose work is done. Each waiter that hears so leaves and wakes the next,
    /// and a dead one would end that chain.
    pub(super) fn remove_dead_heads_of_done(&mut self, env: &Env<'_>) {
        if !self.is_done() {
            return;
        }
        let front = self.queue.iter().flat_map(|queue| queue.value.values());
        let dead = front
            .take(SCANNED_PER_CALL)
            .take_while(|head| !is_alive(head, env));
        for _ in 0..dead.count() {
            self.remove_head();
        }
    }

    /// Removes the first entry of the queue.
    fn remove_head(&mut self) -> Option<QueueEntry> {
        let queue = self.queue.as_mut()?;
        let (_, head) = queue.value.pop_first()?;
        self.forget_empty_queue();
        Some(head)
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
        self.rank(entry)
    }

    /// Returns how many entries stand before this one.
    pub(super) fn rank(&self, entry: &QueueEntry) -> u64 {
        let entries = self.queue.iter().flat_map(|queue| queue.value.values());
        let before = entries.take_while(|waits| *waits != entry).count();
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
