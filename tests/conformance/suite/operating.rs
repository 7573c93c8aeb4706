//! What operators see of locks, and what they do with them.

use std::time::Instant;

use lock_core::admin::{AdminError, LockStatus};
use test_support::fixtures::AT_ONCE;

use super::subject::{NAME, Subject, WAIT, free_at_once, granted_within, within};

/// Any manager sees the holder and the waiters, in their order.
pub(crate) async fn inspect_shows_the_holder_and_the_waiters(s: &Subject) {
    assert_eq!(
        s.second.admin().inspect(NAME).await.unwrap().status,
        LockStatus::Free
    );
    let held = s
        .first
        .lock(NAME)
        .ttl(s.ttl_to_drop())
        .acquire()
        .await
        .unwrap();
    let waiting = [
        s.start_waiter(s.second.lock(NAME).wait(WAIT), 1).await,
        s.start_waiter(s.first.lock(NAME).wait(WAIT), 2).await,
    ];
    let info = s.second.admin().inspect(NAME).await.unwrap();
    assert_eq!((info.name.as_str(), &*info.key), (NAME, held.key()));
    let holder = info.holder().expect("the lock is held");
    let token = held.fencing_token().filter(|_| s.value_has_token);
    assert_eq!(holder.token, token);
    assert!(s.first.holder(NAME).await.unwrap().is_some());
    if s.capabilities.names_holder() {
        assert_eq!(&*holder.label, "first");
        assert!(!holder.is_foreign());
    }
    let count = if s.is_fair { 2 } else { 0 };
    assert_eq!(
        (info.waiters.len(), info.waiters_total),
        (count, count as u64)
    );
    for waiter in waiting {
        waiter.abort();
    }
    held.release().await.unwrap();
}

/// The list has exactly the locks that the pattern matches.
pub(crate) async fn list_shows_the_locks_of_a_pattern(s: &Subject) {
    let mut held = Vec::new();
    for name in ["list:1", "list:2", "other"] {
        held.push(
            s.first
                .lock(name)
                .ttl(s.ttl_to_drop())
                .acquire()
                .await
                .unwrap(),
        );
    }
    let page = s.second.admin().list("list:*").await.unwrap();
    assert_eq!(page.next, None);
    let mut names: Vec<_> = page.locks.iter().map(|lock| lock.name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["list:1", "list:2"]);
    for lock in &page.locks {
        assert!(lock.holder().is_some(), "{lock:?}");
    }
    for held in held {
        held.release().await.unwrap();
    }
}

/// A revoked lock is lost, and no other caller gets it before its lease ends. Where the value names no
/// owner, there is nothing to revoke.
pub(crate) async fn revoked_lock_stays_locked_until_its_lease_ends(s: &Subject) {
    let ttl = s.ttl() * 2;
    let held = s.first.lock(NAME).ttl(ttl).acquire().await.unwrap();
    let seen = s.second.admin().inspect(NAME).await.unwrap();
    let request = s.second.admin().force_release(NAME).by("ops");
    let request = request.expect_unchanged(&seen);
    if !s.capabilities.is_owner_unique() {
        let error = request.await.unwrap_err();
        assert!(matches!(error, AdminError::Foreign { .. }), "{error}");
        held.release().await.unwrap();
        return;
    }
    let waiter = s.start_waiter(s.second.lock(NAME).wait(WAIT), 1).await;
    let revoked = request.await.unwrap();
    let started = Instant::now();
    assert!(revoked.previous.is_some() && !revoked.is_granted);
    assert!(
        revoked.free_in > ttl / 2 && revoked.free_in <= ttl,
        "{revoked:?}"
    );
    let info = s.first.admin().inspect(NAME).await.unwrap();
    assert!(
        matches!(info.status, LockStatus::Blocked { .. }),
        "{info:?}"
    );
    within(ttl / 3 + AT_ONCE, held.lost()).await;
    let reason = held.loss_reason().expect("the lock is lost");
    assert_eq!(reason.to_string(), "revoked by ops");
    let next = granted_within(revoked.free_in + AT_ONCE, waiter).await;
    let took = started.elapsed();
    assert!(
        took + AT_ONCE / 10 >= revoked.free_in,
        "{took:?}: {revoked:?}"
    );
    assert!(held.release().await.is_err());
    next.release().await.unwrap();
}

/// A lock that is released at once is free, and its holder loses it.
pub(crate) async fn force_release_now_frees_the_lock(s: &Subject) {
    let held = s.first.lock(NAME).ttl(s.ttl()).acquire().await.unwrap();
    let request = s.second.admin().force_release(NAME).free_at_once();
    let request = if s.capabilities.is_owner_unique() {
        request
    } else {
        request.remove_foreign()
    };
    let released = request.await.unwrap();
    assert_eq!(released.free_in.as_millis(), 0);
    let next = free_at_once(&s.second).await;
    within(s.ttl() + AT_ONCE, held.lost()).await;
    next.renew().await.unwrap();
    drop(held);
    next.release().await.unwrap();
}
