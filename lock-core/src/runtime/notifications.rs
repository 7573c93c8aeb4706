//! The registered owner ids of a manager, and the delivery of notifications to its waiters.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use tokio::sync::Notify;

use crate::backend::NotificationSink;
use crate::protocol::fencing_token::FencingToken;
use crate::protocol::local_queue::{LocalPosition, LocalQueue, ObservedExpiry, Peers, QueuePlace};
use crate::protocol::mailbox::{Mailbox, Notification};
use crate::protocol::owner_id::{OwnerId, ShortId};
use crate::sync::Mutex;
use crate::telemetry::Reporter;

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
        // A waiter that got the lock releases it. Any other one leaves a message to the next waiter that it has
        // not read.
        let unread = observed_expiry.is_none().then_some(self.slot.as_ref());
        let passes_on = unread
            .flatten()
            .is_some_and(|slot| slot.mailbox.lock().has_release());
        let (removed, next) = {
            let mut state = self.notifications.state.lock();
            let Some(queue) = state.queues.get_mut(&self.key) else {
                return;
            };
            queue.observe(observed_expiry, token);
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
            first.map(Arc::clone)
        };
        if let Some(slot) = &first {
            slot.deliver(Notification::Released, &self.reporter);
        }
        first.is_some()
    }

    fn poll_all(&self) {
        self.notify_all(Notification::Poll);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::protocol::clock::Moment;
    use crate::protocol::mailbox::Grant;

    fn waiter(notifications: &Arc<Notifications>, owner_id: OwnerId) -> LocalPeers {
        notifications.register_acquire(owner_id, "k".into(), Registrant::Waiter)
    }

    fn slot(notifications: &Arc<Notifications>, owner_id: OwnerId) -> Arc<WaiterSlot> {
        waiter(notifications, owner_id).slot.unwrap()
    }

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
        let notifications = Arc::<Notifications>::default();
        let owner_id = OwnerId::random();
        let slot = slot(&notifications, owner_id);
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
        let notifications = Arc::<Notifications>::default();
        let owner_id = OwnerId::random();
        let slot = slot(&notifications, owner_id);
        let waiting = tokio::spawn(async move { slot.next().await });
        tokio::task::yield_now().await;
        assert!(notifications.notify(owner_id, Notification::Grant(grant())));
        assert_eq!(waiting.await.unwrap(), Notification::Grant(grant()));
    }

    #[tokio::test]
    async fn two_grants_at_once_need_a_confirmation() {
        let notifications = Arc::<Notifications>::default();
        let owner_id = OwnerId::random();
        let slot = slot(&notifications, owner_id);
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
        let notifications = Arc::<Notifications>::default();
        let owner_ids = [1, 1, 2].map(|first: u128| {
            let random = OwnerId::random().to_string();
            OwnerId::parse(&format!("{first:08x}{}", &random[8..])).unwrap()
        });
        let slots = owner_ids.map(|owner_id| slot(&notifications, owner_id));
        let holder_expires_at = Moment::from_millis(5);
        assert!(notifications.notify_by_short_id(
            owner_ids[0].short(),
            Notification::Head { holder_expires_at }
        ));
        for slot in &slots[..2] {
            assert_eq!(slot.next().await, Notification::Head { holder_expires_at });
        }
        assert_eq!(slots[2].mailbox.lock().take(), None);
        notifications.remove(owner_ids[2]);
        assert!(!notifications.notify_by_short_id(owner_ids[2].short(), Notification::Poll));
    }

    #[tokio::test]
    async fn next_waiter_is_notified_when_it_becomes_first() {
        let notifications = Arc::<Notifications>::default();
        let mut peers = [(); 3].map(|()| waiter(&notifications, OwnerId::random()));
        let third = peers[2].slot.clone().unwrap();
        let observed_expiry = |ms| ObservedExpiry {
            at: Moment::from_millis(ms),
            holder_expires_at: Moment::from_millis(ms + 100),
        };
        let token = |number| Some(FencingToken::new(number));
        let mut enter = |at: usize, ms| peers[at].enter(Some(observed_expiry(ms)), token(ms));
        assert_eq!(enter(0, 7), LocalPosition::First);
        assert_eq!(enter(1, 5), LocalPosition::Behind);
        assert_eq!(enter(2, 6), LocalPosition::Behind);
        let latest = peers[1].last_observed();
        assert_eq!(latest, Some(observed_expiry(7)), "the latest observation");
        assert_eq!(peers[1].last_token(), token(7));
        peers[1].leave(None, None);
        assert_eq!(third.mailbox.lock().take(), None, "another waiter is first");
        peers[0].leave(Some(observed_expiry(9)), token(9));
        assert_eq!(third.next().await, Notification::First);
        assert_eq!(peers[2].last_observed(), Some(observed_expiry(9)));
        let position = peers[2].enter(Some(observed_expiry(10)), token(10));
        assert_eq!(position, LocalPosition::First);
        peers[2].leave(None, None);
        assert!(notifications.state.lock().queues.is_empty());
    }

    #[tokio::test]
    async fn release_is_announced_to_the_first_waiter_of_the_key() {
        let notifications = Arc::<Notifications>::default();
        assert!(!notifications.notify_released("k"), "no waiter");
        let mut peers = [(); 2].map(|()| waiter(&notifications, OwnerId::random()));
        let [first, second] = [0, 1].map(|at: usize| peers[at].slot.clone().unwrap());
        for peer in &mut peers {
            peer.enter(None, None);
        }
        assert!(!notifications.notify_released("other"));
        assert!(notifications.notify_released("k"));
        assert!(notifications.notify_released("k"));
        assert_eq!(first.next().await, Notification::Released);
        assert_eq!(first.mailbox.lock().take(), None);
        assert_eq!(second.mailbox.lock().take(), None);
        let released = notifications.released_keys().await;
        assert_eq!(released, HashSet::from(["k".into(), "other".into()]));
    }

    #[tokio::test]
    async fn waiter_that_leaves_passes_an_unread_release_on() {
        let notifications = Arc::<Notifications>::default();
        let observed = ObservedExpiry {
            at: Moment::from_millis(1),
            holder_expires_at: Moment::from_millis(2),
        };
        for (reads, acquires, passes_on) in [
            (false, None, true),
            (true, None, false),
            // It releases the lock later.
            (false, Some(observed), false),
        ] {
            let mut peers = [(); 2].map(|()| waiter(&notifications, OwnerId::random()));
            let [first, second] = [0, 1].map(|at: usize| peers[at].slot.clone().unwrap());
            for peer in &mut peers {
                peer.enter(None, None);
            }
            notifications.notify_released("k");
            if reads {
                first.next().await;
            }
            peers[0].leave(acquires, None);
            assert_eq!(second.mailbox.lock().has_release(), passes_on);
            peers[1].leave(None, None);
        }
        assert!(notifications.state.lock().queues.is_empty());
    }

    #[test]
    fn owner_id_that_does_not_wait_gets_no_notification() {
        let notifications = Arc::<Notifications>::default();
        let owner_id = OwnerId::random();
        assert!(!notifications.notify(owner_id, Notification::Grant(grant())));
        let peers = notifications.register_acquire(owner_id, "k".into(), Registrant::Attempt);
        assert!(peers.slot.is_none());
        assert!(
            notifications.is_registered(owner_id)
                && !notifications.notify(owner_id, Notification::Grant(grant()))
        );
        notifications.remove(owner_id);
        assert!(!notifications.is_registered(owner_id));
    }
}
