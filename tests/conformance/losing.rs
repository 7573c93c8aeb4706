//! Leases: their end, their extension, and how a holder learns of its loss.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lock_core::{LockError, LockGuard, Renew};
use test_support::fixtures::AT_ONCE;
use tests::shut_down;

use crate::subject::{NAME, Subject, WAIT, granted_at_once, within};

/// The server counts in whole milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);

async fn mortal(s: &Subject) -> LockGuard {
    let request = s.first.lock(NAME).ttl(s.ttl()).renew(Renew::Never);
    request.acquire().await.unwrap()
}

/// A lock that is not renewed goes to the next after its ttl, not earlier, and by then its
/// guard knows.
pub(crate) async fn a_lease_ends(s: &Subject) {
    let ttl = s.ttl();
    let asked = Instant::now();
    let held = mortal(s).await;
    assert!(held.remaining() <= ttl && !held.is_lost());
    let next = s.second.lock(NAME).wait(WAIT).acquire().await.unwrap();
    assert!(held.is_lost(), "two hold it");
    let took = asked.elapsed();
    assert!(took + ROUNDING >= ttl, "{took:?}");
    assert!(took < ttl + AT_ONCE, "{took:?}");
    next.release().await.unwrap();
}

/// Renewing counts the ttl anew.
pub(crate) async fn a_lease_is_extended_by_renewing(s: &Subject) {
    let ttl = s.ttl();
    let asked = Instant::now();
    let held = mortal(s).await;
    let watch = held.watch();
    let end = asked + ttl * 2;
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

/// Without a word of the holder, a lock outlives its ttl for as long as its guard lives: also
/// one that was handed over.
pub(crate) async fn a_living_guard_is_kept_beyond_its_ttl(s: &Subject) {
    let ttl = s.ttl();
    let held = s.first.lock(NAME).ttl(ttl).acquire().await.unwrap();
    let request = s.second.lock(NAME).ttl(ttl).wait(WAIT);
    let waiting = s.start_waiter(request, 1).await;
    tokio::time::sleep(ttl * 2).await;
    assert!(!held.is_lost());
    assert!(!waiting.is_finished());
    held.release().await.expect("it was held all the time");
    let held = granted_at_once(waiting).await;
    tokio::time::sleep(ttl * 2).await;
    assert!(!held.is_lost());
    let busy = s.first.lock(NAME).try_acquire().await.unwrap();
    assert!(busy.is_none(), "{busy:?}");
    held.release().await.expect("it was held all the time");
}

/// `is_lost`, `lost`, `remaining`, `renew` and `release` agree.
pub(crate) async fn the_loss_is_told_in_every_way(s: &Subject) {
    let ttl = s.ttl();
    let asked = Instant::now();
    let held = mortal(s).await;
    let watch = held.watch();
    let watching = tokio::spawn({
        let watch = watch.clone();
        async move { watch.lost().await }
    });
    within(ttl + AT_ONCE, held.lost()).await;
    within(AT_ONCE, watching).await.unwrap();
    // The holder has to stop before the server lets another one in.
    assert!(asked.elapsed() > ttl / 2);
    assert!(held.is_lost() && watch.is_lost() && !watch.is_held());
    assert_eq!(held.remaining(), Duration::ZERO);
    assert_eq!(watch.remaining(), Duration::ZERO);
    within(AT_ONCE, held.lost()).await;
    let error = held.renew().await.unwrap_err();
    assert!(matches!(error, LockError::Lost { .. }), "{error}");
    assert!(held.is_lost(), "a renewal brought it back");
    // Another client had it meanwhile, so that the server cannot know it any more.
    let next = s.second.lock(NAME).wait(WAIT).acquire().await.unwrap();
    next.release().await.unwrap();
    let error = held.release().await.unwrap_err();
    assert!(matches!(error, LockError::Lost { .. }), "{error}");
}

/// Nothing runs on without the lock.
pub(crate) async fn the_body_is_dropped_when_the_lock_is_lost(s: &Subject) {
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

/// Whatever renews it, a lock is lost after the longest time that it may be held.
pub(crate) async fn a_hold_has_its_limit(s: &Subject) {
    let ttl = s.ttl();
    let asked = Instant::now();
    let longest = ttl * 2;
    let request = s.first.lock(NAME).ttl(ttl).max_hold(longest);
    let running = request.run(async |held| {
        let end = asked + ttl;
        while Instant::now() < end {
            assert!(!held.is_lost(), "{:?}", asked.elapsed());
            tokio::time::sleep(ttl / 10).await;
        }
        std::future::pending::<()>().await;
    });
    let out = within(longest + AT_ONCE, running).await;
    assert!(matches!(out, Err(LockError::Lost { .. })), "{out:?}");
    assert!(asked.elapsed() > ttl);
    let next = s.second.lock(NAME).wait(ttl + AT_ONCE).acquire().await;
    next.unwrap().release().await.unwrap();
}

/// Only the owner releases: neither `release` nor drop of a guard that lost the lock touches
/// whoever has it now, nor does anything that is left of a guard that was released.
pub(crate) async fn a_lost_guard_cannot_release_the_next_holder(s: &Subject) {
    let first = mortal(s).await;
    let next = s.second.lock(NAME).wait(WAIT).acquire().await.unwrap();
    let error = first.release().await.unwrap_err();
    assert!(matches!(error, LockError::Lost { .. }), "{error}");
    shut_down(&s.first).await;
    next.renew().await.expect("the first did not release it");
    next.release().await.unwrap();

    let first = mortal(s).await;
    let next = s.second.lock(NAME).wait(WAIT).acquire().await.unwrap();
    drop(first);
    shut_down(&s.first).await;
    next.renew().await.expect("the first did not release it");
    let busy = s.first.lock(NAME).try_acquire().await.unwrap();
    assert!(busy.is_none(), "{busy:?}");
    next.release().await.unwrap();
}

/// Each grant's token is greater than those of all earlier ones, however it came about; where
/// there are none, no holder gets one.
pub(crate) async fn tokens_grow(s: &Subject) {
    let mut last = None;
    let mut check = |held: &LockGuard| {
        let token = held.fencing_token();
        assert_eq!(token, held.watch().fencing_token());
        if !s.able.fencing_token {
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
    let mortal = mortal(s).await;
    check(&mortal);
    let next = s.second.lock(NAME).wait(WAIT).acquire().await.unwrap();
    check(&next);
    next.release().await.unwrap();
}
