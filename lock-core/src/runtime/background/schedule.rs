//! The times at which the background worker has to act on each lease.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use crate::runtime::held_lock::HeldLock;
use lock_protocol::clock::Moment;
use lock_protocol::owner_id::OwnerId;

#[derive(Default)]
pub(super) struct Schedule {
    due: BTreeMap<(Moment, OwnerId), Arc<HeldLock>>,
}

impl Schedule {
    /// Schedules a lock.
    pub(super) fn put(&mut self, due: Moment, held: &Arc<HeldLock>) {
        // This never drops the last reference: the caller has another one.
        self.remove(held);
        held.set_scheduled(Some(due));
        self.due.insert((due, held.owner_id), Arc::clone(held));
        // A guard may be released between two steps of the worker; then it stays unscheduled. After the
        // insertion, because a release that finds the lock unscheduled does not look here.
        if held.is_released() {
            self.remove(held);
        }
    }

    /// Removes a lock. The caller drops the result outside of the mutex, since that may drop
    /// wakers.
    pub(super) fn remove(&mut self, held: &HeldLock) -> Option<Arc<HeldLock>> {
        let at = held.scheduled_at()?;
        held.set_scheduled(None);
        self.due.remove(&(at, held.owner_id))
    }

    pub(super) fn take_due(&mut self, now: Moment) -> Vec<Arc<HeldLock>> {
        let mut due = Vec::new();
        while let Some(first) = self.due.first_entry()
            && first.key().0 <= now
        {
            let held = first.remove();
            held.set_scheduled(None);
            due.push(held);
        }
        due
    }

    pub(super) fn all(&self) -> Vec<Arc<HeldLock>> {
        self.due.values().cloned().collect()
    }

    /// Returns the locks of these keys.
    pub(super) fn of(&self, keys: &HashSet<Arc<str>>) -> Vec<Arc<HeldLock>> {
        let all = self.due.values();
        all.filter(|held| held.is_released_in(keys))
            .cloned()
            .collect()
    }

    /// Returns the first moment at which a lock is due.
    pub(super) fn first(&self) -> Option<Moment> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }
}
