//! Waiting for a lock, and giving up.

use std::task::Poll;
use std::time::{Duration, Instant};

use lock_core::LockError;
use lock_core::error::{InvalidDialectReason, InvalidSetting};
use test_support::eventually_async;
use test_support::fixtures::{AT_ONCE, SOON};
use tests::{Waiter, in_time, poll_once, shut_down};
use tokio::task::JoinSet;

use super::subject::{NAME, Subject, WAIT, free_within, granted_at_once, granted_within, within};

/// The holder's release grants the lock to the waiter.
pub(crate) async fn waiter_gets_the_released_lock(s: &Subject) {
    let held = s.first.lock(NAME).acquire().await.unwrap();
    let waiting = s.start_waiter(s.second.lock(NAME).wait(WAIT), 1).await;
    assert!(!waiting.is_finished());
    held.release().await.unwrap();
    let held = granted_at_once(waiting).await;
    assert!(!held.is_lost());
    let busy = s.first.lock(NAME).try_acquire().await.unwrap();
    assert!(busy.is_none(), "{busy:?}");
    // Dropping the guard hands over as a release does.
    let waiting = s.start_waiter(s.first.lock(NAME).wait(WAIT), 1).await;
    drop(held);
    granted_at_once(waiting).await.release().await.unwrap();
}

/// The wait ends neither early nor late, and the error names the holder.
pub(crate) async fn wait_ends_in_time_and_names_the_holder(s: &Subject) {
    let held = s.first.lock(NAME).acquire().await.unwrap();
    // The first waiter of a manager spends half of its time on the subscription, and the first wait below is short.
    let subscribed = s.start_waiter(s.second.lock(NAME).wait(WAIT), 1).await;
    subscribed.abort();
    assert!(subscribed.await.unwrap_err().is_cancelled());
    eventually_async(AT_ONCE, async || s.has_waiters(0).await).await;
    let _before = s.start_waiter(s.first.lock(NAME).wait(WAIT), 1).await;
    for wait in [Duration::from_millis(400), Duration::from_millis(700)] {
        let started = Instant::now();
        let error = in_time(wait, s.second.lock(NAME).wait(wait).acquire()).await;
        let (took, error) = (started.elapsed(), error.unwrap_err());
        assert!(took >= wait, "{took:?}");
        let LockError::Timeout {
            key,
            waited,
            position,
            ..
        } = &error
        else {
            panic!("{error}");
        };
        assert_eq!(**key, s.key(NAME));
        assert_eq!(*position, s.is_fair.then_some(1));
        assert!(*waited >= wait && *waited <= took, "{waited:?} of {took:?}");
        assert!(error.is_contended());
        let holder = error.holder().expect("the error names the holder");
        if s.capabilities.names_holder() {
            assert_eq!(&*holder.label, "first");
        }
        let attempt = s.second.lock(NAME).wait(WAIT).try_acquire();
        let none = within(AT_ONCE, attempt).await.unwrap();
        assert!(none.is_none(), "{none:?}");
    }
    // A waiter that gave up left the queue.
    eventually_async(AT_ONCE, async || s.has_waiters(1).await).await;
    held.release().await.unwrap();
}

/// Waiters of both managers get the lock in the order of arrival. A dialect without that order
/// serves each waiter once.
pub(crate) async fn waiters_get_the_lock_in_order(s: &Subject) {
    let mut held = s.first.lock(NAME).acquire().await.unwrap();
    let mut waiters = Vec::new();
    for number in 1..=6 {
        let request = s.manager(number / 2).lock(NAME).wait(WAIT);
        waiters.push(s.start_waiter(request, number).await);
    }
    if !s.is_fair {
        held.release().await.unwrap();
        let served = waiters.into_iter().map(|waiting| async {
            let held = granted_within(WAIT, waiting).await;
            held.release().await.unwrap();
        });
        let served: JoinSet<_> = served.collect();
        served.join_all().await;
        return;
    }
    for waiting in waiters {
        held.release().await.unwrap();
        // If another waiter got the lock, this one would keep waiting.
        held = granted_at_once(waiting).await;
    }
    held.release().await.unwrap();
}

/// The lock goes from the holder to the waiter. If the dialect has handover, it is never free in
/// between.
pub(crate) async fn try_acquire_does_not_jump_the_queue(s: &Subject) {
    let held = s.first.lock(NAME).acquire().await.unwrap();
    let waiting = s.start_waiter(s.second.lock(NAME).wait(WAIT), 1).await;
    held.release().await.unwrap();
    let early = s.first.lock(NAME).try_acquire().await.unwrap();
    if s.hands_over {
        assert!(early.is_none(), "{early:?}");
    }
    drop(early);
    granted_at_once(waiting).await.release().await.unwrap();
}

/// A newcomer that finds as many waiters as it accepts is refused at once, and leaves no trace. Without a queue, the
/// limit is refused.
pub(crate) async fn full_queue_refuses_a_newcomer(s: &Subject) {
    let limited = |most| s.second.lock(NAME).wait(WAIT).max_queue(most);
    if !s.is_fair {
        let error = within(AT_ONCE, limited(1).acquire()).await.unwrap_err();
        let reason = InvalidDialectReason::NoQueue;
        assert!(
            matches!(&error, LockError::Invalid(InvalidSetting::Dialect { reason: found, .. }) if *found == reason),
            "{error}"
        );
        return;
    }
    // A free lock has no queue.
    let held = limited(0).acquire().await.unwrap();
    let first = s.start_waiter(s.first.lock(NAME).wait(WAIT), 1).await;
    let second = s.start_waiter(limited(2), 2).await;
    for most in [0, 2] {
        let error = within(AT_ONCE, limited(most).acquire()).await.unwrap_err();
        let LockError::QueueFull { key, position, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!((&**key, *position), (&*s.key(NAME), 2));
        assert!(error.is_contended() && error.holder().is_some());
        s.has_waiters(2).await;
    }
    let set = s.second.lock_all([NAME, "other"]).wait(WAIT).max_queue(2);
    let error = within(AT_ONCE, set.acquire()).await.unwrap_err();
    assert!(matches!(error, LockError::QueueFull { .. }), "{error}");
    let other = s.first.lock("other").acquire().await.unwrap();
    other.release().await.unwrap();
    let third = s.start_waiter(limited(3), 3).await;
    held.release().await.unwrap();
    for waiting in [first, second, third] {
        granted_at_once(waiting).await.release().await.unwrap();
    }
}

/// A waiter whose future is dropped leaves no trace.
pub(crate) async fn dropped_waiter_is_skipped(s: &Subject) {
    let held = s.first.lock(NAME).acquire().await.unwrap();
    let request_to_drop = || s.second.lock(NAME).ttl(s.ttl_to_drop()).wait(WAIT);
    let dropped = s.start_waiter(request_to_drop(), 1).await;
    let next = s.start_waiter(s.first.lock(NAME).wait(WAIT), 2).await;
    // The release may reach the server before the cancel of the dropped waiter.
    drop_waiter(dropped);
    held.release().await.unwrap();
    let held = granted_within(s.patience(), next).await;

    let dropped = s.start_waiter(request_to_drop(), 1).await;
    let next = s.start_waiter(s.first.lock(NAME).wait(WAIT), 2).await;
    drop_waiter(dropped);
    eventually_async(SOON, async || s.has_waiters(1).await).await;
    held.release().await.unwrap();
    let held = granted_within(s.patience(), next).await;
    held.release().await.unwrap();
}

/// A waiter is granted the lock and dropped before it is polled again. The lock goes to the next
/// waiter.
pub(crate) async fn waiter_dropped_at_its_grant_hands_over(s: &Subject) {
    let held = s.first.lock(NAME).acquire().await.unwrap();
    let dropped = s.second.lock(NAME).ttl(s.ttl_to_drop()).wait(WAIT);
    let mut dropped = Box::pin(dropped.acquire());
    eventually_async(SOON, async || {
        assert!(poll_once(&mut dropped).await.is_pending());
        s.has_waiters(1).await
    })
    .await;
    let next = s.start_waiter(s.first.lock(NAME).wait(WAIT), 2).await;
    held.release().await.unwrap();
    drop(dropped);
    let held = granted_within(s.patience(), next).await;
    held.release().await.unwrap();
}

/// The lock is free, at whatever stage the acquire was dropped.
pub(crate) async fn dropped_acquire_leaves_no_lock(s: &Subject) {
    for polls in 0..12 {
        let request = s.manager(polls).lock(NAME).ttl(s.ttl_to_drop());
        let mut acquiring = Box::pin(request.acquire());
        for _ in 0..polls {
            if let Poll::Ready(outcome) = poll_once(&mut acquiring).await {
                drop(outcome.unwrap());
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(acquiring);
        // A command that is still on its way must not take effect after this one.
        let held = free_within(s.patience(), s.manager(polls + 1)).await;
        held.release().await.unwrap();
    }
    shut_down(&s.first).await;
    shut_down(&s.second).await;
    let free = s.first.lock(NAME).try_acquire().await.unwrap();
    free.expect("the lock is free").release().await.unwrap();
}

/// Drops a waiter's future, or the guard that it has just got.
fn drop_waiter(waiting: Waiter) {
    waiting.abort();
    drop(waiting);
}

/// A close ends waiters and new calls. Held locks stay, and a shutdown follows.
pub(crate) async fn close_ends_waiters_and_keeps_held_locks(s: &Subject) {
    let held = s.first.lock(NAME).ttl(s.ttl()).acquire().await.unwrap();
    let waiting = s.start_waiter(s.first.lock(NAME).wait(WAIT), 1).await;
    let set = s.first.lock_all(["a", NAME]).wait(WAIT);
    let set = tokio::spawn(set.acquire());
    eventually_async(SOON, async || s.first.health().waiting >= 2).await;
    s.first.close();
    let ended = within(AT_ONCE, waiting).await.unwrap();
    assert!(matches!(ended, Err(LockError::ShuttingDown)), "{ended:?}");
    let ended = within(SOON, set).await.unwrap();
    assert!(matches!(ended, Err(LockError::ShuttingDown)), "{ended:?}");
    for error in [
        s.first.lock("new").wait(WAIT).acquire().await.unwrap_err(),
        s.first.lock("new").try_acquire().await.unwrap_err(),
        s.first.lock_all(["a", "b"]).acquire().await.unwrap_err(),
        s.first.ping().await.unwrap_err(),
    ] {
        assert!(matches!(error, LockError::ShuttingDown), "{error}");
    }
    if s.remaining_is_finite {
        // Only renewals keep it.
        tokio::time::sleep(s.ttl() * 2).await;
    }
    assert!(!held.is_lost());
    held.renew().await.unwrap();
    held.release().await.unwrap();
    within(SOON, s.first.shutdown()).await.unwrap();
}

/// What is said about outages of the server changes nothing for a busy lock.
pub(crate) async fn busy_lock_does_not_use_the_time_for_outages(s: &Subject) {
    let held = s.first.lock(NAME).acquire().await.unwrap();
    let one = || s.second.lock(NAME).outage_wait(WAIT);
    let both = || s.second.lock_all([NAME, "other"]).outage_wait(WAIT);
    assert!(
        within(AT_ONCE, one().try_acquire())
            .await
            .unwrap()
            .is_none()
    );
    assert!(
        within(AT_ONCE, both().try_acquire())
            .await
            .unwrap()
            .is_none()
    );
    let wait = Duration::from_millis(500);
    let error = in_time(wait, one().wait(wait).acquire()).await.unwrap_err();
    assert!(matches!(error, LockError::Timeout { .. }), "{error}");
    let error = in_time(wait, both().wait(wait).acquire())
        .await
        .unwrap_err();
    assert!(error.is_contended(), "{error}");
    held.release().await.unwrap();
    one().acquire().await.unwrap().release().await.unwrap();
    both().acquire().await.unwrap().release().await.unwrap();
}

/// A shutdown ends waiters and new calls, and waits for guards that still exist.
pub(crate) async fn shutdown_ends_waiters(s: &Subject) {
    let held = s.first.lock(NAME).acquire().await.unwrap();
    let other = s.first.lock("other").acquire().await.unwrap();
    let waiting = s.start_waiter(s.first.lock(NAME).wait(WAIT), 1).await;
    assert_eq!((s.first.health().held, s.first.health().waiting), (2, 1));
    let mut shutdown = Box::pin(s.first.shutdown());
    assert!(poll_once(&mut shutdown).await.is_pending());
    let ended = within(AT_ONCE, waiting).await.unwrap();
    assert!(matches!(ended, Err(LockError::ShuttingDown)), "{ended:?}");
    eventually_async(AT_ONCE, async || s.has_waiters(0).await).await;
    for error in [
        s.first.lock("new").wait(WAIT).acquire().await.unwrap_err(),
        s.first.lock("new").try_acquire().await.unwrap_err(),
        s.first.lock("new").run(async |_| ()).await.unwrap_err(),
        s.first.ping().await.unwrap_err(),
    ] {
        assert!(matches!(error, LockError::ShuttingDown), "{error}");
    }
    held.renew().await.unwrap();
    held.release().await.unwrap();
    assert!(poll_once(&mut shutdown).await.is_pending(), "one is held");
    drop(other);
    within(AT_ONCE, shutdown).await.unwrap();
    let health = s.first.health();
    assert_eq!(
        (health.held, health.waiting, health.cleanups_open),
        (0, 0, 0)
    );
    // Another one has nothing to do.
    within(AT_ONCE, s.first.shutdown()).await.unwrap();
}

/// A probe acquires a lock that blocks no other, and concurrent probes share it.
pub(crate) async fn ping_shows_that_locks_are_granted(s: &Subject) {
    let held = s.first.lock(NAME).acquire().await.unwrap();
    let (one, other) = tokio::join!(s.first.ping(), s.first.ping());
    let pong = one.unwrap();
    assert_eq!(pong, other.unwrap(), "one probe for both");
    assert_eq!(pong.notifies_waiters, s.notifies);
    let version = pong.server_version.as_deref();
    assert_eq!(version.is_some(), s.has_server(), "{version:?}");
    assert!(version.is_none_or(|text| text.starts_with("Redis ") || text.starts_with("Valkey ")));
    assert_eq!(s.first.ping().await.unwrap(), pong, "reused for a second");
    held.release().await.unwrap();
    let health = s.first.health();
    assert!(health.is_connected && health.is_worker_alive);
    assert_eq!(health.is_subscribed, pong.notifies_waiters, "{health:?}");
    assert_eq!(health.held, 0);
}
