//! The times at which the background worker has to act on each lease.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::LONGEST_SLEEP;
use crate::protocol::clock::Moment;
use crate::protocol::owner_id::OwnerId;
use crate::runtime::held_lock::HeldLock;

#[derive(Default)]
pub(super) struct Schedule {
    due: BTreeMap<(Moment, OwnerId), Arc<HeldLock>>,
    /// When the worker wakes without a notification.
    next_wakeup: Option<Moment>,
    /// A lock was scheduled since the last wakeup was planned.
    dirty: bool,
}

impl Schedule {
    /// Schedules a lock. Returns whether the worker has to be woken for it.
    pub(super) fn put(&mut self, due: Moment, held: &Arc<HeldLock>) -> bool {
        // This never drops the last reference: the caller has another one.
        self.remove(held);
        // A guard may be released between two steps of the worker; then it stays unscheduled.
        if held.is_released() {
            return false;
        }
        held.set_scheduled(Some(due));
        self.due.insert((due, held.owner_id), Arc::clone(held));
        self.dirty = true;
        self.next_wakeup.is_none_or(|next_wakeup| due < next_wakeup)
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

    pub(super) fn plan_wakeup(&mut self, now: Moment, cleanup: Option<Moment>) -> Option<Duration> {
        let first = self.due.first_key_value().map(|((at, _), _)| *at);
        // The worker does not rest as soon as no lock is held. With many short critical sections,
        // each one would have to wake it, which costs as much as a command.
        let expected = std::mem::take(&mut self.dirty).then_some(LONGEST_SLEEP);
        let pauses = [first, cleanup].into_iter().flatten();
        let pause = pauses
            .map(|at| at.since(now).min(LONGEST_SLEEP))
            .min()
            .or(expected);
        self.next_wakeup = pause.map(|pause| now.plus(pause));
        pause
    }
}
