//! The held locks of a manager without a background worker, so that an operator or a test can take them.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::runtime::held_lock::HeldLock;
use crate::sync::Mutex;
use lock_protocol::loss::LossReason;
use lock_protocol::owner_id::OwnerId;

/// The locks that guards hold, and some that they have dropped.
#[derive(Default)]
pub(crate) struct TrackedLocks {
    state: Mutex<TrackedState>,
}

#[derive(Default)]
struct TrackedState {
    held: HashMap<OwnerId, Weak<HeldLock>>,
    /// Why a lock was taken whose waiter has not read its grant yet.
    taken: HashMap<OwnerId, LossReason>,
}

impl TrackedLocks {
    /// Adds a lock. Returns the reason if an operator took it before it was added.
    #[must_use]
    pub(crate) fn add(&self, held: &Arc<HeldLock>) -> Option<LossReason> {
        let mut state = self.state.lock();
        let all = &mut state.held;
        // Before the map grows, so that the search costs little per lock.
        if all.len() == all.capacity() {
            all.retain(|_, held| held.strong_count() > 0);
        }
        all.insert(held.owner_id, Arc::downgrade(held));
        state.taken.remove(&held.owner_id)
    }

    /// Returns the lock that an operator took, if a guard holds it. Otherwise keeps the reason for
    /// [`add`](Self::add), as long as `is_acquiring` says that a guard may follow.
    pub(crate) fn take(
        &self,
        owner_id: OwnerId,
        reason: &LossReason,
        is_acquiring: impl Fn(OwnerId) -> bool,
    ) -> Option<Arc<HeldLock>> {
        let mut state = self.state.lock();
        let held = state.held.get(&owner_id).and_then(Weak::upgrade);
        if held.is_none() {
            state.taken.insert(owner_id, reason.clone());
            state.taken.retain(|owner_id, _| is_acquiring(*owner_id));
        }
        held
    }

    /// Returns the locks that are neither lost nor released.
    pub(crate) fn held(&self) -> Vec<Arc<HeldLock>> {
        let mut held: Vec<_> = {
            let state = self.state.lock();
            state.held.values().filter_map(Weak::upgrade).collect()
        };
        held.retain(|held| !held.is_lost() && !held.is_released());
        held
    }
}
