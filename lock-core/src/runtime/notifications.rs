//! The registered owner ids of a manager, and the delivery of notifications to its waiters.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tokio::sync::Notify;

use crate::backend::{Grant, Notification, NotificationSink};
use crate::protocol::clock::Moment;
use crate::protocol::fencing_token::FencingToken;
use crate::protocol::owner_id::{OwnerId, ShortId};
use crate::protocol::poll_schedule::{LocalPosition, ObservedExpiry};
use crate::stats::Counters;
use crate::sync::Mutex;

/// The mailbox of one waiter.
#[derive(Debug, Default)]
pub(crate) struct WaiterSlot {
    pending: Mutex<PendingNotifications>,
    notify: Notify,
}

#[derive(Debug, Default)]
struct PendingNotifications {
    grant: Option<Grant>,
    head: Option<Moment>,
    first: bool,
    poll: bool,
}

impl PendingNotifications {
    fn put(&mut self, notification: Notification) {
        match notification {
            Notification::Grant(grant) => {
                // Two grants cannot both be valid, and only the server knows which one is.
                let is_only = self.grant.is_none();
                self.grant = Some(Grant {
                    until: grant.until.filter(|_| is_only),
                    ..grant
                });
            }
            Notification::Head { holder_expires_at } => self.head = Some(holder_expires_at),
            Notification::First => self.first = true,
            Notification::Poll => self.poll = true,
        }
    }

    fn take(&mut self) -> Option<Notification> {
        if let Some(grant) = self.grant.take() {
            return Some(Notification::Grant(grant));
        }
        if std::mem::take(&mut self.poll) {
            return Some(Notification::Poll);
        }
        if let Some(holder_expires_at) = self.head.take() {
            return Some(Notification::Head { holder_expires_at });
        }
        std::mem::take(&mut self.first).then_some(Notification::First)
    }
}

impl WaiterSlot {
    /// Returns the next notification, the most important first.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing: the poll that returns a notification also removes it.
    pub(crate) async fn next(&self) -> Notification {
        loop {
            if let Some(notification) = self.pending.lock().take() {
                return notification;
            }
            self.notify.notified().await;
        }
    }

    fn deliver(&self, notification: Notification, counters: &Counters) {
        self.pending.lock().put(notification);
        counters.waking(|| self.notify.notify_one());
    }
}

/// All owner ids of this manager that are held, waiting or not yet cancelled; and its waiters by
/// key.
#[derive(Debug, Default)]
pub(crate) struct Notifications {
    state: Mutex<Registered>,
    counters: Arc<Counters>,
}

#[derive(Debug, Default)]
struct Registered {
    /// Ordered by id, so that ids with the same beginning are adjacent.
    slots: BTreeMap<OwnerId, Option<Arc<WaiterSlot>>>,
    queues: HashMap<Arc<str>, LocalQueue>,
    next_place: u64,
}

/// The waiters of this manager on one key, in the order in which the server queued them.
#[derive(Debug, Default)]
struct LocalQueue {
    waiters: BTreeMap<u64, Arc<WaiterSlot>>,
    last_observed: Option<ObservedExpiry>,
    last_token: Option<FencingToken>,
}

/// The place of a waiter in its manager's [`LocalQueue`] of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuePlace(u64);

impl LocalQueue {
    fn local_position(&self, place: QueuePlace) -> LocalPosition {
        match self.waiters.first_key_value() {
            Some((first, _)) if *first == place.0 => LocalPosition::First,
            _ => LocalPosition::Behind,
        }
    }

    fn observe(&mut self, observed_expiry: Option<ObservedExpiry>, token: Option<FencingToken>) {
        if let Some(observed_expiry) = observed_expiry
            && self
                .last_observed
                .is_none_or(|known| known.at <= observed_expiry.at)
        {
            self.last_observed = Some(observed_expiry);
        }
        self.last_token = self.last_token.max(token);
    }
}

impl Notifications {
    pub(crate) fn new(counters: Arc<Counters>) -> Self {
        Self {
            state: Mutex::default(),
            counters,
        }
    }

    /// Registers a waiter. Has to run before the first command with the owner id is sent.
    pub(crate) fn register_waiter(&self, owner_id: OwnerId) -> Arc<WaiterSlot> {
        let slot = Arc::new(WaiterSlot::default());
        let registered = Some(Arc::clone(&slot));
        self.state.lock().slots.insert(owner_id, registered);
        slot
    }

    /// Registers a holder or a single attempt, which get no notifications.
    pub(crate) fn register(&self, owner_id: OwnerId) {
        self.state.lock().slots.insert(owner_id, None);
    }

    pub(crate) fn remove(&self, owner_id: OwnerId) {
        let removed = self.state.lock().slots.remove(&owner_id);
        drop(removed);
    }

    pub(crate) fn is_registered(&self, owner_id: OwnerId) -> bool {
        self.state.lock().slots.contains_key(&owner_id)
    }

    /// Records that the server queued this waiter on `key`, behind the earlier ones of this
    /// manager.
    pub(crate) fn enter_queue(&self, key: &Arc<str>, slot: &Arc<WaiterSlot>) -> QueuePlace {
        let mut state = self.state.lock();
        state.next_place += 1;
        let place = state.next_place;
        if !state.queues.contains_key(key) {
            state.queues.insert(Arc::clone(key), LocalQueue::default());
        }
        if let Some(queue) = state.queues.get_mut(key) {
            queue.waiters.insert(place, Arc::clone(slot));
        }
        QueuePlace(place)
    }

    /// Records what a waiter observed of the holder. Returns the waiter's local position.
    pub(crate) fn observe(
        &self,
        key: &str,
        place: QueuePlace,
        observed_expiry: Option<ObservedExpiry>,
        token: Option<FencingToken>,
    ) -> LocalPosition {
        let mut state = self.state.lock();
        let Some(queue) = state.queues.get_mut(key) else {
            return LocalPosition::Behind;
        };
        queue.observe(observed_expiry, token);
        queue.local_position(place)
    }

    /// Returns the latest observation of the holder of `key`, over all waiters of this manager.
    pub(crate) fn last_observed(&self, key: &str) -> Option<ObservedExpiry> {
        self.state.lock().queues.get(key)?.last_observed
    }

    /// Returns the greatest token that the waiters of this manager have observed for `key`.
    pub(crate) fn last_token(&self, key: &str) -> Option<FencingToken> {
        self.state.lock().queues.get(key)?.last_token
    }

    /// Removes a waiter that waits no longer, and notifies the waiter that is first now. If the
    /// waiter acquired the lock, `observed_expiry` and `token` are its own.
    pub(crate) fn leave_queue(
        &self,
        key: &str,
        place: QueuePlace,
        observed_expiry: Option<ObservedExpiry>,
        token: Option<FencingToken>,
    ) {
        let (removed, next) = {
            let mut state = self.state.lock();
            let Some(queue) = state.queues.get_mut(key) else {
                return;
            };
            queue.observe(observed_expiry, token);
            let was_first = queue.local_position(place) == LocalPosition::First;
            let removed = queue.waiters.remove(&place.0);
            let next = queue.waiters.first_key_value();
            let next = next.filter(|_| was_first).map(|(_, slot)| Arc::clone(slot));
            if queue.waiters.is_empty() {
                state.queues.remove(key);
            }
            (removed, next)
        };
        drop(removed);
        if let Some(next) = next {
            next.deliver(Notification::First, &self.counters);
        }
    }
}

impl NotificationSink for Notifications {
    fn notify(&self, owner_id: OwnerId, notification: Notification) -> bool {
        let slot = self.state.lock().slots.get(&owner_id).cloned().flatten();
        if let Some(slot) = &slot {
            slot.deliver(notification, &self.counters);
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
            slot.deliver(notification, &self.counters);
        }
        !slots.is_empty()
    }

    fn poll_all(&self) {
        let slots: Vec<_> = self
            .state
            .lock()
            .slots
            .values()
            .flatten()
            .cloned()
            .collect();
        for slot in slots {
            slot.deliver(Notification::Poll, &self.counters);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn grant() -> Grant {
        Grant {
            token: FencingToken::new(1),
            received: Moment::from_millis(1),
            lease: Duration::from_secs(2),
            until: None,
        }
    }

    #[tokio::test]
    async fn grant_is_delivered_before_other_notifications() {
        let notifications = Notifications::default();
        let owner_id = OwnerId::random();
        let slot = notifications.register_waiter(owner_id);
        let holder_expires_at = Moment::from_millis(5);
        assert!(notifications.notify(owner_id, Notification::Head { holder_expires_at }));
        notifications.poll_all();
        assert!(notifications.notify(owner_id, Notification::Grant(grant())));
        assert_eq!(slot.next().await, Notification::Grant(grant()));
        assert_eq!(slot.next().await, Notification::Poll);
        assert_eq!(slot.next().await, Notification::Head { holder_expires_at });
    }

    #[tokio::test]
    async fn notification_before_the_wait_is_not_missed() {
        let notifications = Notifications::default();
        let owner_id = OwnerId::random();
        let slot = notifications.register_waiter(owner_id);
        let waiting = tokio::spawn(async move { slot.next().await });
        tokio::task::yield_now().await;
        assert!(notifications.notify(owner_id, Notification::Grant(grant())));
        assert_eq!(waiting.await.unwrap(), Notification::Grant(grant()));
    }

    #[tokio::test]
    async fn two_grants_at_once_need_a_confirmation() {
        let notifications = Notifications::default();
        let owner_id = OwnerId::random();
        let slot = notifications.register_waiter(owner_id);
        let dated = Grant {
            until: Some(Moment::from_millis(2)),
            ..grant()
        };
        notifications.notify(owner_id, Notification::Grant(dated));
        assert_eq!(slot.next().await, Notification::Grant(dated));
        notifications.notify(owner_id, Notification::Grant(dated));
        notifications.notify(owner_id, Notification::Grant(dated));
        assert_eq!(slot.next().await, Notification::Grant(grant()));
    }

    #[tokio::test]
    async fn head_notification_finds_the_waiter_by_short_id() {
        let notifications = Notifications::default();
        let owner_ids = [1, 1, 2].map(|first: u128| {
            let random = OwnerId::random().to_string();
            OwnerId::parse(&format!("{first:08x}{}", &random[8..])).unwrap()
        });
        let slots = owner_ids.map(|owner_id| notifications.register_waiter(owner_id));
        let holder_expires_at = Moment::from_millis(5);
        assert!(notifications.notify_by_short_id(
            owner_ids[0].short(),
            Notification::Head { holder_expires_at }
        ));
        for slot in &slots[..2] {
            assert_eq!(slot.next().await, Notification::Head { holder_expires_at });
        }
        assert_eq!(slots[2].pending.lock().take(), None);
        notifications.remove(owner_ids[2]);
        assert!(!notifications.notify_by_short_id(owner_ids[2].short(), Notification::Poll));
    }

    #[tokio::test]
    async fn next_waiter_is_notified_when_it_becomes_first() {
        let notifications = Notifications::default();
        let key: Arc<str> = "k".into();
        let slots = [(); 3].map(|()| notifications.register_waiter(OwnerId::random()));
        let places = [0, 1, 2].map(|at: usize| notifications.enter_queue(&key, &slots[at]));
        let observed_expiry = |ms| ObservedExpiry {
            at: Moment::from_millis(ms),
            holder_expires_at: Moment::from_millis(ms + 100),
        };
        let token = |number| Some(FencingToken::new(number));
        let observe = |at: usize, ms| {
            notifications.observe(&key, places[at], Some(observed_expiry(ms)), token(ms))
        };
        assert_eq!(observe(0, 7), LocalPosition::First);
        assert_eq!(observe(1, 5), LocalPosition::Behind);
        assert_eq!(
            notifications.last_observed(&key),
            Some(observed_expiry(7)),
            "the latest observation"
        );
        assert_eq!(notifications.last_token(&key), token(7));
        notifications.leave_queue(&key, places[1], None, None);
        assert_eq!(
            slots[2].pending.lock().take(),
            None,
            "another waiter is first"
        );
        notifications.leave_queue(&key, places[0], Some(observed_expiry(9)), token(9));
        assert_eq!(slots[2].next().await, Notification::First);
        assert_eq!(notifications.last_observed(&key), Some(observed_expiry(9)));
        assert_eq!(observe(2, 10), LocalPosition::First);
        notifications.leave_queue(&key, places[2], None, None);
        assert!(notifications.state.lock().queues.is_empty());
    }

    #[test]
    fn owner_id_that_does_not_wait_gets_no_notification() {
        let notifications = Notifications::default();
        let owner_id = OwnerId::random();
        assert!(!notifications.notify(owner_id, Notification::Grant(grant())));
        notifications.register(owner_id);
        assert!(
            notifications.is_registered(owner_id)
                && !notifications.notify(owner_id, Notification::Grant(grant()))
        );
        notifications.remove(owner_id);
        assert!(!notifications.is_registered(owner_id));
    }
}
