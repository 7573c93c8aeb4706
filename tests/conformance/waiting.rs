//! Waiter for a lock, and not waiting any more.

use std::task::Poll;
use std::time::{Duration, Instant};

use lock_core::LockError;
use test_support::eventually_async;
use test_support::fixtures::{AT_ONCE, SOON};
use tests::{Waiter, poll_once, shut_down};
use tokio::task::JoinSet;

use crate::subject::{NAME, Subject, WAIT, free_within, granted_at_once, granted_within, within};

/// The holder's release is the waiter's grant.
pub(crate) async fn one_who_waits_gets_it(s: &Subject) {
    let held = s.first.lock(NAME).acquire().await.unwrap();
    let waiting = s.start_waiter(s.second.lock(NAME).wait(WAIT), 1).await;
    assert!(!waiting.is_finished());
    held.release().await.unwrap();
    let held = granted_at_once(waiting).await;
    assert!(!held.is_lost());
    let busy = s.first.lock(NAME).try_acquire().await.unwrap();
    assert!(busy.is_none(), "{busy:?}");
    // Dropping hands over as releasing does.
    let waiting = s.start_waiter(s.first.lock(NAME).wait(WAIT), 1).await;
    drop(held);
    granted_at_once(waiting).await.release().await.unwrap();
}

/// Not before the wait, not much later, and with word of the holder.
pub(crate) async fn the_wait_ends_in_time_and_names_the_holder(s: &Subject) {
    let held = s.first.lock(NAME).acquire().await.unwrap();
    let _before = s.start_waiter(s.first.lock(NAME).wait(WAIT), 1).await;
    for wait in [Duration::from_millis(60), Duration::from_millis(300)] {
        let asked = Instant::now();
        let error = s.second.lock(NAME).wait(wait).acquire().await.unwrap_err();
        let took = asked.elapsed();
        assert!(took >= wait, "{took:?}");
        assert!(took < wait + Duration::from_millis(250), "{took:?}");
        let LockError::Timeout { key, waited, .. } = &error else {
            panic!("{error}");
        };
        assert_eq!(&**key, "lock:order:42");
        assert!(*waited >= wait && *waited <= took, "{waited:?} of {took:?}");
        assert!(error.is_contended());
        let holder = error.holder().expect("the holder was seen");
        if s.able.names_holder {
            assert_eq!(holder.label(), "first");
        }
        assert_eq!(holder.position(), s.able.fifo.then_some(1));
        let attempt = s.second.lock(NAME).wait(WAIT).try_acquire();
        let none = within(AT_ONCE, attempt).await.unwrap();
        assert!(none.is_none(), "{none:?}");
    }
    // Whoever gave up has left the queue.
    eventually_async(AT_ONCE, async || s.has_waiters(1)).await;
    held.release().await.unwrap();
}

/// First in, first out, whichever manager they ask; where that is not claimed, one after another.
pub(crate) async fn those_who_wait_are_served_in_order(s: &Subject) {
    let mut held = s.first.lock(NAME).acquire().await.unwrap();
    let mut line = Vec::new();
    for number in 1..=6 {
        let request = s.manager(number / 2).lock(NAME).wait(WAIT);
        line.push(s.start_waiter(request, number).await);
    }
    if !s.able.fifo {
        held.release().await.unwrap();
        let served = line.into_iter().map(|waiting| async {
            let held = granted_within(WAIT, waiting).await;
            held.release().await.unwrap();
        });
        let served: JoinSet<_> = served.collect();
        served.join_all().await;
        return;
    }
    for waiting in line {
        held.release().await.unwrap();
        // Had another one got it, this one would wait on.
        held = granted_at_once(waiting).await;
    }
    held.release().await.unwrap();
}

/// The lock goes from the holder to the waiter, and is free at no time in between, where that is
/// claimed.
pub(crate) async fn one_who_tries_does_not_overtake_those_who_wait(s: &Subject) {
    let held = s.first.lock(NAME).acquire().await.unwrap();
    let waiting = s.start_waiter(s.second.lock(NAME).wait(WAIT), 1).await;
    held.release().await.unwrap();
    let early = s.first.lock(NAME).try_acquire().await.unwrap();
    if s.able.handover {
        assert!(early.is_none(), "{early:?}");
    }
    drop(early);
    granted_at_once(waiting).await.release().await.unwrap();
}

/// A waiter whose future is dropped is as if it had never been there.
pub(crate) async fn a_waiter_that_leaves_is_passed_over(s: &Subject) {
    let held = s.first.lock(NAME).acquire().await.unwrap();
    let to_leave = || s.second.lock(NAME).ttl(s.ttl_to_drop()).wait(WAIT);
    let leaving = s.start_waiter(to_leave(), 1).await;
    let staying = s.start_waiter(s.first.lock(NAME).wait(WAIT), 2).await;
    // The release may well come before word of the leaving.
    leave(leaving);
    held.release().await.unwrap();
    let held = granted_within(s.patience(), staying).await;

    let leaving = s.start_waiter(to_leave(), 1).await;
    let staying = s.start_waiter(s.first.lock(NAME).wait(WAIT), 2).await;
    leave(leaving);
    eventually_async(SOON, async || s.has_waiters(1)).await;
    held.release().await.unwrap();
    let held = granted_within(s.patience(), staying).await;
    held.release().await.unwrap();
}

/// A waiter that was given the lock, and is dropped before it was polled again, hands it on.
pub(crate) async fn a_waiter_that_leaves_at_the_grant_hands_on(s: &Subject) {
    let held = s.first.lock(NAME).acquire().await.unwrap();
    let leaving = s.second.lock(NAME).ttl(s.ttl_to_drop()).wait(WAIT);
    let mut leaving = Box::pin(leaving.acquire());
    eventually_async(SOON, async || {
        assert!(poll_once(&mut leaving).await.is_pending());
        s.has_waiters(1)
    })
    .await;
    let staying = s.start_waiter(s.first.lock(NAME).wait(WAIT), 2).await;
    held.release().await.unwrap();
    drop(leaving);
    let held = granted_within(s.patience(), staying).await;
    held.release().await.unwrap();
}

/// However far a try came before it was dropped, the lock is free.
pub(crate) async fn a_dropped_try_leaves_nothing(s: &Subject) {
    for polls in 0..12 {
        let request = s.manager(polls).lock(NAME).ttl(s.ttl_to_drop());
        let mut trying = Box::pin(request.acquire());
        for _ in 0..polls {
            if let Poll::Ready(got) = poll_once(&mut trying).await {
                drop(got.unwrap());
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(trying);
        // A copy that is still on its way must not come after this one.
        let held = free_within(s.patience(), s.manager(polls + 1)).await;
        held.release().await.unwrap();
    }
    shut_down(&s.first).await;
    shut_down(&s.second).await;
    let free = s.first.lock(NAME).try_acquire().await.unwrap();
    free.expect("it is free").release().await.unwrap();
}

/// Drops a waiter's future, or the guard that it got in this very moment.
fn leave(waiting: Waiter) {
    waiting.abort();
    drop(waiting);
}
