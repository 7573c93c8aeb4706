use std::time::Duration;

use super::*;
use lock_protocol::key::LockName;
use lock_protocol::mailbox::Grant;

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
    for (reads, replied, acquires, passes_on) in [
        (false, false, None, true),
        // No command has had a reply since.
        (true, false, None, true),
        (true, true, None, false),
        // It releases the lock later.
        (false, false, Some(observed), false),
        (true, false, Some(observed), false),
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
        if replied {
            peers[0].on_reply();
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

#[test]
fn acquire_pauses_after_a_release_that_others_were_notified_of() {
    let notifications = Notifications::default();
    let key = |name: &str| LockKey::new("", &LockName::from(name.to_owned())).unwrap();
    let released = ReleaseOutcome::already_released();
    let notified = ReleaseOutcome {
        notified_others: true,
        ..released
    };
    let now = Moment::from_millis(100);
    let pause = |name, ms| notifications.pause_before_acquire(&key(name), Moment::from_millis(ms));
    notifications.on_release(&key("k"), &released, now);
    assert_eq!(pause("k", 100), None);
    notifications.on_release(&key("k"), &notified, now);
    assert_eq!(pause("k", 100), Some(PAUSE));
    assert_eq!(pause("k", 99), Some(PAUSE), "no longer");
    assert_eq!(pause("k", 101), Some(PAUSE / 2));
    assert_eq!(pause("k", 102), None);
    assert_eq!(pause("other", 100), None);
    for number in 0..2 * MANY_PAUSES {
        let now = now.plus(PAUSE * u32::try_from(number).unwrap());
        notifications.on_release(&key(&number.to_string()), &notified, now);
    }
    assert!(notifications.pauses.lock().len() <= MANY_PAUSES);
}
