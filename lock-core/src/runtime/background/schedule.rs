//! When the background worker has to look at each lease.

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
    /// When the keeper will look by itself.
    next_wakeup: Option<Moment>,
    /// Something was put here since the last look.
    dirty: bool,
}

impl Schedule {
    /// Whether the keeper has to be woken for it.
    pub(super) fn put(&mut self, due: Moment, held: &Arc<HeldLock>) -> bool {
        // Never the last one: the caller has another.
        self.remove(held);
        // A guard may be released between two steps of the keeper: then it stays out.
        if held.is_released() {
            return false;
        }
        held.set_scheduled(Some(due));
        self.due.insert((due, held.owner_id), Arc::clone(held));
        self.dirty = true;
        self.next_wakeup.is_none_or(|next_wakeup| due < next_wakeup)
    }

    /// The caller drops what was here, and with it the wakers of those who wait for its loss.
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
        // Not at rest as soon as nothing is held: where short sections follow each other, each
        // would wake the keeper, which costs as much as a command.
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
