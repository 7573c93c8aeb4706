//! Held locks that are younger than a third of their lease.
//!
//! Most critical sections end long before their first renewal. Their locks stay here and never enter
//! the schedule, which the background worker uses all the time. The worker looks here only when the
//! first deadline of a young lock comes. Then it takes all of them into its schedule.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::runtime::held_lock::HeldLock;
use crate::sync::Mutex;
use lock_protocol::clock::Moment;

/// Enough that callers on many cores seldom meet.
const SHARDS: usize = 16;

/// No lock has a deadline.
const NEVER: u64 = u64::MAX;

/// The young locks of a manager.
pub(super) struct YoungLocks {
    shards: [Mutex<Shard>; SHARDS],
    /// No young lock has an earlier deadline, in nanoseconds.
    earliest: AtomicU64,
}

#[derive(Default)]
struct Shard {
    slots: Vec<Option<Arc<HeldLock>>>,
    free: Vec<usize>,
}

impl Default for YoungLocks {
    fn default() -> Self {
        Self {
            shards: Default::default(),
            earliest: AtomicU64::new(NEVER),
        }
    }
}

impl YoungLocks {
    /// Adds a lock with this deadline. A lock that is here already keeps its place.
    pub(super) fn put(&self, due: Moment, held: &Arc<HeldLock>) {
        {
            let mut shard = self.shard(held).lock();
            if held.young_slot().is_none() {
                let slot = shard.free.pop().unwrap_or(shard.slots.len());
                if slot == shard.slots.len() {
                    shard.slots.push(None);
                }
                shard.slots[slot] = Some(Arc::clone(held));
                held.set_young_slot(Some(slot));
            }
        }
        self.earliest.fetch_min(due.as_nanos(), Ordering::SeqCst);
    }

    /// Removes a lock. The caller drops the result outside of the mutex.
    pub(super) fn remove(&self, held: &HeldLock) -> Option<Arc<HeldLock>> {
        held.young_slot()?;
        let mut shard = self.shard(held).lock();
        // The worker may have taken it meanwhile.
        let slot = held.young_slot()?;
        held.set_young_slot(None);
        shard.free.push(slot);
        shard.slots[slot].take()
    }

    /// Returns the moment before which no young lock has a deadline.
    pub(super) fn earliest(&self) -> Option<Moment> {
        match self.earliest.load(Ordering::SeqCst) {
            NEVER => None,
            nanos => Some(Moment::from_nanos(nanos)),
        }
    }

    /// Takes all locks, if the first deadline has come.
    pub(super) fn take_due(&self, now: Moment) -> Vec<Arc<HeldLock>> {
        if self.earliest().is_none_or(|earliest| now < earliest) {
            return Vec::new();
        }
        self.take_all()
    }

    /// Takes all locks.
    pub(super) fn take_all(&self) -> Vec<Arc<HeldLock>> {
        // Before the locks are taken: a lock that is added meanwhile sets it again.
        self.earliest.store(NEVER, Ordering::SeqCst);
        let mut taken = Vec::new();
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.free.clear();
            for held in std::mem::take(&mut shard.slots).into_iter().flatten() {
                held.set_young_slot(None);
                taken.push(held);
            }
        }
        taken
    }

    /// Takes the locks of these keys.
    pub(super) fn take_of(&self, keys: &HashSet<Arc<str>>) -> Vec<Arc<HeldLock>> {
        let mut taken = Vec::new();
        for shard in &self.shards {
            let shard = &mut *shard.lock();
            for (at, slot) in shard.slots.iter_mut().enumerate() {
                if let Some(held) = slot.take_if(|held| held.is_released_in(keys)) {
                    held.set_young_slot(None);
                    shard.free.push(at);
                    taken.push(held);
                }
            }
        }
        taken
    }

    fn shard(&self, held: &HeldLock) -> &Mutex<Shard> {
        let [low, ..] = held.owner_id.random_bits().to_le_bytes();
        &self.shards[usize::from(low) % SHARDS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::background::tests::held;

    fn at(ms: u64) -> Moment {
        Moment::from_millis(ms)
    }

    #[test]
    fn locks_stay_until_the_first_deadline_comes() {
        let young = YoungLocks::default();
        assert_eq!(young.earliest(), None);
        let locks: Vec<_> = (0..50).map(|_| held(60_000)).collect();
        for (held, due) in locks.iter().zip(100..) {
            young.put(at(due), held);
            young.put(at(due + 100), held);
        }
        assert_eq!(young.earliest(), Some(at(100)));
        assert!(young.take_due(at(99)).is_empty());
        let removed = young.remove(&locks[7]).expect("it is here");
        assert!(Arc::ptr_eq(&removed, &locks[7]));
        assert!(young.remove(&locks[7]).is_none());
        assert_eq!(young.take_due(at(100)).len(), 49, "all of them");
        assert_eq!(young.earliest(), None);
        assert!(young.remove(&locks[8]).is_none());
        young.put(at(300), &locks[8]);
        assert!(young.remove(&locks[8]).is_some());
    }

    #[test]
    fn place_of_a_removed_lock_is_used_again() {
        let young = YoungLocks::default();
        for _ in 0..1_000 {
            let held = held(60_000);
            young.put(at(100), &held);
            drop(young.remove(&held));
        }
        let places: usize = young
            .shards
            .iter()
            .map(|shard| shard.lock().slots.len())
            .sum();
        assert!(places <= SHARDS, "{places}");
    }
}
