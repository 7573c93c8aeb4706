//! The registered owner ids of a manager, and the delivery of notifications to its waiters.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::store::NotificationSink;
use crate::sync::Mutex;
use crate::telemetry::Reporter;
use lock_protocol::cleanup::ReleaseOutcome;
use lock_protocol::clock::Moment;
use lock_protocol::fencing_token::FencingToken;
use lock_protocol::key::LockKey;
use lock_protocol::local_queue::{LocalPosition, LocalQueue, ObservedExpiry, Peers, QueuePlace};
use lock_protocol::mailbox::{Mailbox, Notification};
use lock_protocol::owner_id::{OwnerId, ShortId};

/// How long a new acquire waits after a release of the same key that other clients were notified of. Without this pause,
/// one process acquiring in a loop wins nearly all turns, because the others first have to receive the message.
const PAUSE: Duration = Duration::from_millis(2);

/// Pauses that have ended are removed when there are more.
const MANY_PAUSES: usize = 64;

/// The mailbox of one waiter.
#[derive(Debug, Default)]
pub(crate) struct WaiterSlot {
    mailbox: Mutex<Mailbox>,
    notify: Notify,
}

impl WaiterSlot {
    /// Returns the next notification, the most important first.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: the poll that returns a notification also removes it.
    pub(crate) async fn next(&self) -> Notification {
        loop {
            if let Some(notification) = self.mailbox.lock().take() {
                return notification;
            }
            self.notify.notified().await;
        }
    }

    fn deliver(&self, notification: Notification, reporter: &Reporter) {
        self.mailbox.lock().put(notification);
        self.wake(reporter);
    }

    fn wake(&self, reporter: &Reporter) {
        reporter.waking(|| self.notify.notify_one());
    }
}

/// All owner ids of this manager that are held, waiting or not yet cancelled; and its waiters by
/// key.
#[derive(Debug, Default)]
pub(crate) struct Notifications {
    state: Mutex<Registered>,
    /// The keys whose release was announced since the worker has looked.
    released: Mutex<HashSet<Arc<str>>>,
    has_released: Notify,
    /// Until when new acquires of keys pause.
    pauses: Mutex<HashMap<Arc<str>, Moment>>,
    /// Notified when all leases have to be renewed.
    wants_renewals: Notify,
    reporter: Arc<Reporter>,
}

#[derive(Debug, Default)]
struct Registered {
    /// Ordered by id, so that ids with the same beginning are adjacent.
    slots: BTreeMap<OwnerId, Option<Arc<WaiterSlot>>>,
    queues: HashMap<Arc<str>, LocalQueue<Arc<WaiterSlot>>>,
}

impl Notifications {
    pub(crate) fn new(reporter: Arc<Reporter>) -> Self {
        Self {
            reporter,
            ..Self::default()
        }
    }

    /// Registers an acquisition. Has to run before the first command with the owner id is sent. Only
    /// a waiter gets notifications.
    pub(crate) fn register_acquire(
        self: &Arc<Self>,
        owner_id: OwnerId,
        key: Arc<str>,
        registrant: Registrant,
    ) -> LocalPeers {
        let slot = match registrant {
            Registrant::Waiter => Some(Arc::<WaiterSlot>::default()),
            Registrant::Attempt => None,
        };
        self.state.lock().slots.insert(owner_id, slot.clone());
        LocalPeers {
            notifications: Arc::clone(self),
            key,
            slot,
            place: None,
        }
    }

    pub(crate) fn remove(&self, owner_id: OwnerId) {
        let removed = self.state.lock().slots.remove(&owner_id);
        drop(removed);
    }

    /// Ends all waits at the shutdown.
    pub(crate) fn end_waits(&self) {
        self.notify_all(Notification::ShuttingDown);
    }

    fn notify_all(&self, notification: Notification) {
        let slots: Vec<_> = {
            let state = self.state.lock();
            state.slots.values().flatten().cloned().collect()
        };
        for slot in slots {
            slot.deliver(notification, &self.reporter);
        }
    }

    /// Waits for messages about releases. Returns their keys, each once.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn released_keys(&self) -> HashSet<Arc<str>> {
        loop {
            let released = std::mem::take(&mut *self.released.lock());
            if !released.is_empty() {
                return released;
            }
            self.has_released.notified().await;
        }
    }

    /// Waits until all leases have to be renewed.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn renewals_wanted(&self) {
        self.wants_renewals.notified().await;
    }

    /// Records a release. After one that other clients were notified of, they have their chance first.
    pub(crate) fn on_release(&self, key: &LockKey, outcome: &ReleaseOutcome, now: Moment) {
        if !outcome.notified_others {
            return;
        }
        let mut pauses = self.pauses.lock();
        if pauses.len() >= MANY_PAUSES {
            pauses.retain(|_, until| *until > now);
        }
        pauses.insert(key.text(), now.plus(PAUSE));
    }

    /// Returns how long a new acquire of this key has to pause.
    pub(crate) fn pause_before_acquire(&self, key: &LockKey, now: Moment) -> Option<Duration> {
        let until = *self.pauses.lock().get(key.as_str())?;
        // At most that long: the clock may have been read before the release.
        Some(until.since(now).min(PAUSE)).filter(|pause| !pause.is_zero())
    }

    pub(crate) fn is_registered(&self, owner_id: OwnerId) -> bool {
        self.state.lock().slots.contains_key(&owner_id)
    }
}

/// Whether an acquisition gets notifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Registrant {
    Waiter,
    Attempt,
}

/// A waiter's connection to the other waiters of its manager on the same key.
#[derive(Debug)]
pub(crate) struct LocalPeers {
    notifications: Arc<Notifications>,
    key: Arc<str>,
    /// `None` for a single attempt.
    pub(crate) slot: Option<Arc<WaiterSlot>>,
    place: Option<QueuePlace>,
}

impl LocalPeers {
    /// Records the reply to a command.
    pub(crate) fn on_reply(&self) {
        if let Some(slot) = &self.slot {
            slot.mailbox.lock().on_reply();
        }
    }
}

impl Peers for LocalPeers {
    fn enter(
        &mut self,
        observed_expiry: Option<ObservedExpiry>,
        token: Option<FencingToken>,
    ) -> LocalPosition {
        let Some(slot) = &self.slot else {
            return LocalPosition::First;
        };
        let mut state = self.notifications.state.lock();
        if !state.queues.contains_key(&self.key) {
            let queue = LocalQueue::default();
            state.queues.insert(Arc::clone(&self.key), queue);
        }
        let Some(queue) = state.queues.get_mut(&self.key) else {
            return LocalPosition::Behind;
        };
        let place = self
            .place
            .get_or_insert_with(|| queue.enter(Arc::clone(slot)));
        queue.observe(observed_expiry, token);
        queue.local_position(*place)
    }

    fn leave(&mut self, observed_expiry: Option<ObservedExpiry>, token: Option<FencingToken>) {
        let Some(place) = self.place.take() else {
            return;
        };
        let mut passes_on = false;
        let (removed, next) = {
            let mut state = self.notifications.state.lock();
            let Some(queue) = state.queues.get_mut(&self.key) else {
                return;
            };
            queue.observe(observed_expiry, token);
            // A waiter that got the lock releases it. Any other one leaves a message to the next waiter, if no reply
            // came after it. As long as it is in the queue, a message is for it.
            if let (None, Some(slot)) = (observed_expiry, &self.slot) {
                passes_on = slot.mailbox.lock().has_release();
            }
            let (removed, next) = queue.leave(place);
            let next = next.map(Arc::clone);
            if queue.is_empty() {
                state.queues.remove(&self.key);
            }
            (removed, next)
        };
        drop(removed);
        if let Some(next) = next {
            next.deliver(Notification::First, &self.notifications.reporter);
            if passes_on {
                next.deliver(Notification::Released, &self.notifications.reporter);
            }
        }
    }

    fn last_observed(&self) -> Option<ObservedExpiry> {
        let state = self.notifications.state.lock();
        state.queues.get(&self.key)?.last_observed()
    }

    fn last_token(&self) -> Option<FencingToken> {
        let state = self.notifications.state.lock();
        state.queues.get(&self.key)?.last_token()
    }
}

impl NotificationSink for Notifications {
    fn notify(&self, owner_id: OwnerId, notification: Notification) -> bool {
        let slot = self.state.lock().slots.get(&owner_id).cloned().flatten();
        if let Some(slot) = &slot {
            slot.deliver(notification, &self.reporter);
        }
        slot.is_some()
    }

    fn notify_by_short_id(&self, short: ShortId, notification: Notification) -> bool {
        let slots: Vec<_> = {
            let state = self.state.lock();
            let matching = state.slots.range(short.owner_ids());
            matching.filter_map(|(_, slot)| slot.clone()).collect()
        };
        for slot in &slots {
            slot.deliver(notification, &self.reporter);
        }
        !slots.is_empty()
    }

    fn notify_released(&self, key: &str) -> bool {
        self.released.lock().insert(key.into());
        self.reporter.waking(|| self.has_released.notify_one());
        let first = {
            let state = self.state.lock();
            let first = state.queues.get(key).and_then(LocalQueue::first);
            // As long as it is the first, so that it passes the message on if it leaves.
            first.inspect(|slot| slot.mailbox.lock().put(Notification::Released));
            first.map(Arc::clone)
        };
        if let Some(slot) = &first {
            slot.wake(&self.reporter);
        }
        first.is_some()
    }

    fn poll_all(&self) {
        self.notify_all(Notification::Poll);
    }

    fn renew_all(&self) {
        self.reporter.waking(|| self.wants_renewals.notify_one());
    }
}

#[cfg(test)]
mod tests;
