//! The tasks that wait for the loss of a held lock, or for the risk of one.

use std::collections::HashMap;
use std::task::Waker;

/// What a task waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// The loss.
    Loss,
    /// The risk of a loss, or the loss.
    Risk,
}

/// The wakers of the tasks. A map, since one lock may have thousands.
///
/// A waker is foreign code, so the methods return those that the caller wakes or drops outside of the mutex.
#[derive(Debug, Default)]
pub(super) struct Listeners {
    wakers: HashMap<ListenerId, Waker>,
    last: u64,
}

/// The number of a listener. Odd for those that wait for a risk, which costs no memory beside the waker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ListenerId(u64);

impl ListenerId {
    fn awaits_risk(self) -> bool {
        self.0 % 2 == 1
    }
}

impl Listeners {
    pub(super) fn is_empty(&self) -> bool {
        self.wakers.is_empty()
    }

    /// Returns whether the listener has a waker that wakes the same task.
    pub(super) fn has(&self, id: Option<ListenerId>, waker: &Waker) -> bool {
        let known = id.and_then(|id| self.wakers.get(&id));
        known.is_some_and(|known| known.will_wake(waker))
    }

    /// Sets the waker of a listener, which gets an id if it has none. Returns the waker before.
    #[must_use]
    pub(super) fn put(
        &mut self,
        id: &mut Option<ListenerId>,
        awaited: Awaited,
        waker: Waker,
    ) -> Option<Waker> {
        let id = *id.get_or_insert_with(|| {
            self.last += 2;
            ListenerId(self.last + u64::from(awaited == Awaited::Risk))
        });
        self.wakers.insert(id, waker)
    }

    #[must_use]
    pub(super) fn remove(&mut self, id: ListenerId) -> Option<Waker> {
        self.wakers.remove(&id)
    }

    /// Takes the wakers of all tasks: the lock is lost.
    #[must_use]
    pub(super) fn take_all(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.wakers).into_values().collect()
    }

    /// Takes the wakers of the tasks that wait for a risk: it may come earlier than they know.
    #[must_use]
    pub(super) fn take_of_risk(&mut self) -> Vec<Waker> {
        let taken = self.wakers.extract_if(|id, _| id.awaits_risk());
        taken.map(|(_, waker)| waker).collect()
    }
}
