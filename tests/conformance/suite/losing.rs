//! Leases: their end, their renewal, and how a holder learns of the loss.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lock_core::{LockError, LockGuard, Renew};
use test_support::Stopwatch;
use test_support::fixtures::AT_ONCE;
use tests::{poll_once, shut_down};

use super::subject::{NAME, Subject, WAIT, granted_at_once, within};

/// The server counts in whole milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);

async fn acquire_without_renewal(s: &Subject) -> LockGuard {
    let request = s.first.lock(NAME).ttl(s.ttl()).renew(Renew::Never);
    request.acquire().await.unwrap()
}

/// A lock that is not renewed is free after its ttl and not earlier. Its guard knows of the loss by
/// then.
pub(crate) async fn lease_expires_after_its_ttl(s: &Subject) {
    let ttl = s.ttl();
    let started = Stopwatch::start();
    let held = acquire_without_renewal(s).await;
    assert!(held.remaining() <= ttl && !held.is_lost());
    let next = s.second.lock(NAME).wait(WAIT).acquire().await.unwrap();
    assert!(held.is_lost(), "there are two holders");
    let took = started.elapsed();
    assert!(took + ROUNDING >= ttl, "{took:?}");
    assert!(took < ttl + AT_ONCE + started.stalled(), "{took:?}");
    next.release().await.unwrap();
}

/// Renewing counts the ttl anew.
pub(crate) async fn renew_extends_the_lease(s: &Subject) {
    let ttl = s.ttl();
    let started = Instant::now();
    let held = acquire_without_renewal(s).await;
    let watch = held.watch();
    let end = started + ttl * 2;
    while Instant::now() < end {
        held.renew().await.expect("the lock is held");
        assert!(watch.remaining() > ttl / 2, "{:?}", watch.remaining());
        let busy = s.second.lock(NAME).try_acquire().await.unwrap();
        assert!(busy.is_none(), "{busy:?}");
        tokio::time::sleep(ttl / 10).await;
    }
    assert!(!held.is_lost());
    held.release().await.unwrap();
}

/// The library renews a lock while its guard exists, also after a handover.
pub(crate) async fn guard_is_renewed_beyond_its_ttl(s: &Subject) {
    let ttl = s.ttl();
    let held = s.first.lock(NAME).ttl(ttl).acquire().await.unwrap();
    let request = s.second.lock(NAME).ttl(ttl).wait(WAIT);
    let waiting = s.start_waiter(request, 1).await;
    tokio::time::sleep(ttl * 2).await;
    assert!(!held.is_lost());
    assert!(!waiting.is_finished());
    held.release()
        .await
        .expect("the lock was held all the time");
    let held = granted_at_once(waiting).await;
    tokio::time::sleep(ttl * 2).await;
    assert!(!held.is_lost());
    let busy = s.first.lock(NAME).try_acquire().await.unwrap();
    assert!(busy.is_none(), "{busy:?}");
    held.release()
        .await
        .expect("the lock was held all the time");
}

/// `is_lost`, `lost`, `remaining`, `renew` and `release` agree.
pub(crate) async fn loss_is_reported_in_every_way(s: &Subject) {
    let ttl = s.ttl();
    let started = Instant::now();
    let held = acquire_without_renewal(s).await;
    let watch = held.watch();
    let watching = tokio::spawn({
        let watch = watch.clone();
        async move { watch.lost().await }
    });
    within(ttl + AT_ONCE, held.lost()).await;
    within(AT_ONCE, watching).await.unwrap();
    // The holder has to stop before the server grants the lock again.
    assert!(started.elapsed() > ttl / 2);
    assert!(held.is_lost() && watch.is_lost() && !watch.is_held());
    assert_eq!(held.remaining(), Duration::ZERO);
    assert_eq!(watch.remaining(), Duration::ZERO);
    within(AT_ONCE, held.lost()).await;
    let error = held.renew().await.unwrap_err();
    assert!(matches!(error, LockError::Lost { .. }), "{error}");
    assert!(held.is_lost(), "a renewal acquired the lock again");
    // Another client held the lock in the meantime, so the server has no trace of the first holder.
    let next = s.second.lock(NAME).wait(WAIT).acquire().await.unwrap();
    next.release().await.unwrap();
    let error = held.release().await.unwrap_err();
    assert!(matches!(error, LockError::Lost { .. }), "{error}");
}

/// `at_risk` warns of a loss that a renewal could still prevent, and reports any other loss at once.
pub(crate) async fn lock_without_renewal_is_lost_and_never_at_risk(s: &Subject) {
    let renewed = s.first.lock("renewed").acquire().await.unwrap();
    let mut at_risk = renewed.at_risk();
    assert!(poll_once(&mut at_risk).await.is_pending());
    assert!(!renewed.is_at_risk() && !renewed.watch().is_at_risk());
    renewed.release().await.unwrap();
    assert!(poll_once(&mut at_risk).await.is_pending());

    let ttl = s.ttl();
    let held = acquire_without_renewal(s).await;
    let warned = tokio::spawn(held.watch().at_risk());
    while !held.is_lost() {
        let is_warned = held.is_at_risk() || warned.is_finished();
        // The lock may have been lost after the question.
        assert!(!is_warned || held.is_lost());
        tokio::time::sleep(ttl / 20).await;
    }
    assert!(!held.is_at_risk());
    within(AT_ONCE, warned).await.unwrap();
}

/// The body does not continue without the lock.
pub(crate) async fn body_is_dropped_when_the_lock_is_lost(s: &Subject) {
    struct Flag(Arc<AtomicBool>);
    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    let ttl = s.ttl();
    let dropped = Arc::new(AtomicBool::new(false));
    let flag = Flag(Arc::clone(&dropped));
    let request = s.first.lock(NAME).ttl(ttl).renew(Renew::Never);
    let running = request.run(async move |_| {
        let _flag = flag;
        std::future::pending::<()>().await;
    });
    let out = within(ttl + AT_ONCE, running).await;
    assert!(matches!(out, Err(LockError::Lost { .. })), "{out:?}");
    assert!(dropped.load(Ordering::Acquire));
    let next = s.second.lock(NAME).wait(AT_ONCE).acquire().await.unwrap();
    next.release().await.unwrap();
}

/// A lock is lost after `max_hold`, however often it was renewed.
pub(crate) async fn max_hold_ends_the_lock(s: &Subject) {
    let ttl = s.ttl();
    let started = Instant::now();
    let longest = ttl * 2;
    let request = s.first.lock(NAME).ttl(ttl).max_hold(longest);
    let running = request.run(async |held| {
        let end = started + ttl;
        while Instant::now() < end {
            assert!(!held.is_lost(), "{:?}", started.elapsed());
            tokio::time::sleep(ttl / 10).await;
        }
        std::future::pending::<()>().await;
    });
    let out = within(longest + AT_ONCE, running).await;
    assert!(matches!(out, Err(LockError::Lost { .. })), "{out:?}");
    assert!(started.elapsed() > ttl);
    let next = s.second.lock(NAME).wait(ttl + AT_ONCE).acquire().await;
    next.unwrap().release().await.unwrap();
}

/// Only the owner releases. Neither `release` nor the drop of a lost guard changes the lock of the
/// next holder. Late commands of a released guard do not change it either.
pub(crate) async fn lost_guard_does_not_release_the_next_holder(s: &Subject) {
    let first = acquire_without_renewal(s).await;
    let next = s.second.lock(NAME).wait(WAIT).acquire().await.unwrap();
    let error = first.release().await.unwrap_err();
    assert!(matches!(error, LockError::Lost { .. }), "{error}");
    shut_down(&s.first).await;
    next.renew()
        .await
        .expect("the lost guard did not release the lock");
    next.release().await.unwrap();

    let first = acquire_without_renewal(s).await;
    let next = s.second.lock(NAME).wait(WAIT).acquire().await.unwrap();
    drop(first);
    shut_down(&s.first).await;
    next.renew()
        .await
        .expect("the lost guard did not release the lock");
    let busy = s.first.lock(NAME).try_acquire().await.unwrap();
    assert!(busy.is_none(), "{busy:?}");
    next.release().await.unwrap();
}

/// Each grant's token is greater than all earlier ones, whichever way the lock was granted. In a
/// dialect without tokens, no holder gets one.
pub(crate) async fn fencing_tokens_grow_with_each_grant(s: &Subject) {
    let mut last = None;
    let mut check = |held: &LockGuard| {
        let token = held.fencing_token();
        assert_eq!(token, held.watch().fencing_token());
        if !s.capabilities.is_fenced() {
            assert_eq!(token, None);
            return;
        }
        assert!(token.is_some() && token > last, "{token:?} after {last:?}");
        last = token;
    };
    for turn in 0..10 {
        let held = s.manager(turn).lock(NAME).acquire().await.unwrap();
        check(&held);
        held.renew().await.unwrap();
        let waiting = s.start_waiter(s.manager(turn / 2).lock(NAME).wait(WAIT), 1);
        let waiting = waiting.await;
        held.release().await.unwrap();
        let held = granted_at_once(waiting).await;
        check(&held);
        held.release().await.unwrap();
    }
    let expiring = acquire_without_renewal(s).await;
    check(&expiring);
    let next = s.second.lock(NAME).wait(WAIT).acquire().await.unwrap();
    check(&next);
    next.release().await.unwrap();
}
