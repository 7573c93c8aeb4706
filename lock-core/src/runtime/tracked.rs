//! The held locks of a manager without a background worker, so that an operator or a test can take them.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::protocol::owner_id::OwnerId;
use crate::runtime::held_lock::HeldLock;
use crate::sync::Mutex;

/// The locks that guards hold, and some that they have dropped.
#[derive(Default)]
pub(crate) struct TrackedLocks {
    held: Mutex<HashMap<OwnerId, Weak<HeldLock>>>,
}

impl TrackedLocks {
    pub(crate) fn add(&self, held: &Arc<HeldLock>) {
        let mut all = self.held.lock();
        // Before the map grows, so that the search costs little per lock.
        if all.len() == all.capacity() {
            all.retain(|_, held| held.strong_count() > 0);
        }
        all.insert(held.owner_id, Arc::downgrade(held));
    }

    /// Returns the lock with this owner id, if a guard holds it.
    pub(crate) fn by_owner(&self, owner_id: OwnerId) -> Option<Arc<HeldLock>> {
        self.held.lock().get(&owner_id).and_then(Weak::upgrade)
    }

    /// Returns the locks that are neither lost nor released.
    pub(crate) fn held(&self) -> Vec<Arc<HeldLock>> {
        let mut held: Vec<_> = {
            let all = self.held.lock();
            all.values().filter_map(Weak::upgrade).collect()
        };
        held.retain(|held| !held.is_lost() && !held.is_released());
        held
    }
}
