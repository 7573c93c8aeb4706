//! Readers, writers and permits. Dialects of other libraries and quorums have exclusive locks only.

use std::time::Duration;

use lock_core::error::{InvalidKindReason, InvalidSetting};
use lock_core::{Kind, LockError, LockGuard, LockRequest};
use test_support::fixtures::AT_ONCE;
use tokio::task::JoinSet;

use super::subject::{
    NAME, Subject, WAIT, free_at_once, free_within, granted_at_once, granted_within, within,
};

/// Returns whether the store has shared locks. A store without them refuses each kind before it sends anything.
async fn has_kinds(s: &Subject) -> bool {
    let refused = s.first.lock(NAME).read().try_acquire().await;
    let Err(LockError::Invalid(InvalidSetting::Kind { kind, reason, .. })) = refused else {
        drop(refused.unwrap());
        expect_free(s).await;
        return true;
    };
    assert_eq!((kind, reason), (Kind::Read, InvalidKindReason::Dialect));
    let refused = s.second.lock(NAME).permits(4).acquire().await;
    assert!(matches!(
        refused,
        Err(LockError::Invalid(InvalidSetting::Kind { .. }))
    ));
    let held = s.first.lock(NAME).write().acquire().await.unwrap();
    assert_eq!(held.kind(), Kind::Exclusive);
    let refused = held.downgrade().await;
    assert!(matches!(
        refused,
        Err(LockError::Invalid(InvalidSetting::Kind {
            reason: InvalidKindReason::Dialect,
            ..
        }))
    ));
    false
}

/// Waits until the lock is free for a writer.
async fn expect_free(s: &Subject) {
    free_at_once(&s.first).await.release().await.unwrap();
}

async fn acquire(request: LockRequest) -> LockGuard {
    within(AT_ONCE, request.wait(WAIT).acquire()).await.unwrap()
}

async fn is_free_for(request: LockRequest) -> bool {
    request.try_acquire().await.unwrap().is_some()
}

/// Any number of readers hold together, of both managers. A writer waits for the last one.
pub(crate) async fn readers_hold_together_and_a_writer_waits(s: &Subject) {
    if !has_kinds(s).await {
        return;
    }
    let mut readers = Vec::new();
    for turn in 0..5 {
        readers.push(acquire(s.manager(turn).lock(NAME).read()).await);
    }
    assert_eq!(readers[4].kind(), Kind::Read);
    let token = readers[0].fencing_token();
    assert!(readers.iter().all(|reader| reader.fencing_token() == token));
    let error = s.second.lock(NAME).write().wait(Duration::ZERO).acquire();
    let error = error.await.unwrap_err();
    let holder = error.holder().expect("the error names the holders");
    assert_eq!((holder.kind, holder.count), (Kind::Read, 5));
    assert!(
        error.to_string().contains("held for reading by 5"),
        "{error}"
    );
    let writer = s
        .start_waiter(s.second.lock(NAME).write().wait(WAIT), 1)
        .await;
    for reader in readers {
        assert!(!writer.is_finished());
        reader.release().await.unwrap();
    }
    let writer = granted_at_once(writer).await;
    assert!(writer.fencing_token() > token);
    assert!(!is_free_for(s.first.lock(NAME).read()).await);
    writer.release().await.unwrap();
    assert!(is_free_for(s.first.lock(NAME).read()).await);
}

/// No reader passes a writer that waits. Readers next to each other get the lock together.
pub(crate) async fn readers_and_writers_get_the_lock_in_order(s: &Subject) {
    if !has_kinds(s).await {
        return;
    }
    let first = acquire(s.first.lock(NAME).read()).await;
    let writer = s
        .start_waiter(s.second.lock(NAME).write().wait(WAIT), 1)
        .await;
    assert!(!is_free_for(s.first.lock(NAME).read()).await);
    let mut readers = Vec::new();
    for turn in 0..4 {
        let request = s.manager(turn).lock(NAME).read().wait(WAIT);
        readers.push(s.start_waiter(request, 2 + turn).await);
    }
    let last = s.start_waiter(s.first.lock(NAME).wait(WAIT), 6).await;
    first.release().await.unwrap();
    let writer = granted_at_once(writer).await;
    writer.release().await.unwrap();
    let mut held = Vec::new();
    for reader in readers {
        held.push(granted_at_once(reader).await);
    }
    assert!(!last.is_finished());
    drop(held);
    granted_at_once(last).await.release().await.unwrap();
}

/// As many hold together as there are permits, with their weights. Another number of permits is another group.
pub(crate) async fn permits_limit_how_many_hold_together(s: &Subject) {
    if !has_kinds(s).await {
        return;
    }
    let heavy = acquire(s.first.lock(NAME).permits(4).weight(2)).await;
    let one = acquire(s.second.lock(NAME).permits(4)).await;
    assert_eq!(heavy.kind(), Kind::Permits { of: 4, weight: 2 });
    assert!(!is_free_for(s.first.lock(NAME).permits(4).weight(2)).await);
    assert!(!is_free_for(s.first.lock(NAME).permits(8)).await);
    let two = acquire(s.second.lock(NAME).permits(4)).await;
    let error = s
        .second
        .lock(NAME)
        .permits(4)
        .wait(Duration::ZERO)
        .acquire();
    let error = error.await.unwrap_err().to_string();
    assert!(error.contains("all 4 permits are out"), "{error}");
    let waiting = s.second.lock(NAME).permits(4).weight(2).wait(WAIT);
    let waiting = s.start_waiter(waiting, 1).await;
    let other = s
        .start_waiter(s.first.lock(NAME).permits(8).wait(WAIT), 2)
        .await;
    // A smaller request does not pass the larger one.
    one.release().await.unwrap();
    assert!(!is_free_for(s.first.lock(NAME).permits(4)).await);
    two.release().await.unwrap();
    let waited = granted_at_once(waiting).await;
    assert!(!other.is_finished());
    heavy.release().await.unwrap();
    waited.release().await.unwrap();
    granted_at_once(other).await.release().await.unwrap();
}

/// The last permit goes to the next waiter as the lock does, also when many wait.
pub(crate) async fn every_waiter_for_a_permit_is_served(s: &Subject) {
    if !has_kinds(s).await {
        return;
    }
    let tasks = (0..24).map(|turn| {
        let request = s.manager(turn).lock(NAME).permits(3).wait(WAIT);
        async move {
            let held = request.acquire().await.unwrap();
            tokio::time::sleep(Duration::from_millis(2)).await;
            held.release().await.unwrap();
        }
    });
    let tasks: JoinSet<_> = tasks.collect();
    within(WAIT, tasks.join_all()).await;
    expect_free(s).await;
}

/// A holder that is gone keeps its own place only, and only until its ttl. Others renew theirs.
pub(crate) async fn reader_that_stops_renewing_costs_its_own_ttl(s: &Subject) {
    if !has_kinds(s).await {
        return;
    }
    let ttl = s.shortest_ttl;
    let request = s.first.lock(NAME).read().ttl(ttl);
    let dead = request.renew(lock_core::Renew::Never).acquire();
    let dead = dead.await.unwrap();
    let alive = acquire(s.second.lock(NAME).read().ttl(ttl)).await;
    tokio::time::sleep(ttl * 3).await;
    assert!(dead.is_lost() && !alive.is_lost());
    let writer = s
        .start_waiter(s.first.lock(NAME).write().wait(WAIT), 1)
        .await;
    alive.release().await.unwrap();
    let writer = granted_at_once(writer).await;
    assert!(dead.release().await.unwrap_err().is_lost());
    assert!(!writer.is_lost());
    writer.release().await.unwrap();
}

/// A writer becomes a reader without a moment in which the lock is free.
pub(crate) async fn downgraded_writer_reads_beside_others(s: &Subject) {
    if !has_kinds(s).await {
        return;
    }
    let writer = acquire(s.first.lock(NAME).write()).await;
    let watch = writer.watch();
    let written = writer.fencing_token();
    let reading = s
        .start_waiter(s.second.lock(NAME).read().wait(WAIT), 1)
        .await;
    let next = s
        .start_waiter(s.second.lock(NAME).write().wait(WAIT), 2)
        .await;
    let reader = within(AT_ONCE, writer.downgrade()).await.unwrap();
    assert_eq!(reader.kind(), Kind::Read);
    assert!(reader.fencing_token() > written);
    assert!(!watch.is_held() && !watch.is_lost());
    let reading = granted_at_once(reading).await;
    assert_eq!(reading.fencing_token(), reader.fencing_token());
    assert!(!next.is_finished());
    reader.renew().await.unwrap();
    reader.release().await.unwrap();
    reading.release().await.unwrap();
    let next = granted_at_once(next).await;
    // A read lock has no way back, and cannot be downgraded again.
    let reader = within(AT_ONCE, next.downgrade()).await.unwrap();
    let refused = reader.downgrade().await.unwrap_err();
    assert!(matches!(
        refused,
        LockError::Invalid(InvalidSetting::Kind {
            reason: InvalidKindReason::Downgrade,
            ..
        })
    ));
    expect_free(s).await;
}

/// A downgrade of a lost lock is an error, and leaves no lock.
pub(crate) async fn downgrade_of_a_lost_lock_is_an_error(s: &Subject) {
    if !has_kinds(s).await {
        return;
    }
    let ttl = s.shortest_ttl;
    let request = s.first.lock(NAME).ttl(ttl);
    let held = request.renew(lock_core::Renew::Never).acquire();
    let held = held.await.unwrap();
    tokio::time::sleep(ttl * 2).await;
    let error = within(AT_ONCE, held.downgrade()).await.unwrap_err();
    assert!(error.is_lost(), "{error}");
    expect_free(s).await;
}

/// Guards and futures of shared locks that are dropped leave nothing, at every point.
pub(crate) async fn dropped_readers_and_permits_leave_no_lock(s: &Subject) {
    if !has_kinds(s).await {
        return;
    }
    for kind in [Kind::Read, Kind::Permits { of: 2, weight: 2 }] {
        let held = acquire(s.first.lock(NAME).kind(kind)).await;
        let waiting = s
            .start_waiter(s.second.lock(NAME).write().wait(WAIT), 1)
            .await;
        waiting.abort();
        drop(held);
        expect_free(s).await;
    }
    let writer = acquire(s.first.lock(NAME).write()).await;
    let waiting = s
        .start_waiter(s.second.lock(NAME).read().wait(WAIT), 1)
        .await;
    let mut downgrade = Box::pin(writer.downgrade());
    // In memory, the first poll returns the guard.
    drop(tests::poll_once(&mut downgrade).await);
    drop(downgrade);
    granted_within(WAIT, waiting).await.release().await.unwrap();
    expect_free(s).await;
}

/// Bad input is refused before anything is sent.
pub(crate) async fn invalid_kinds_are_refused(s: &Subject) {
    if !has_kinds(s).await {
        return;
    }
    let lock = || s.first.lock(NAME);
    let min_hold = Duration::from_millis(50);
    for (request, expected) in [
        (lock().permits(0), InvalidKindReason::Permits),
        (lock().permits(10_001), InvalidKindReason::Permits),
        (lock().permits(4).weight(0), InvalidKindReason::Weight),
        (lock().permits(4).weight(5), InvalidKindReason::Weight),
        (lock().permits(400).weight(257), InvalidKindReason::Weight),
        (lock().weight(2), InvalidKindReason::WeightWithoutPermits),
        (
            lock().weight(8).permits(64),
            InvalidKindReason::WeightWithoutPermits,
        ),
        (lock().read().min_hold(min_hold), InvalidKindReason::MinHold),
    ] {
        let error = request.acquire().await.unwrap_err();
        let LockError::Invalid(InvalidSetting::Kind { reason, .. }) = error else {
            panic!("{error}");
        };
        assert_eq!(reason, expected);
    }
    // The last kind wins, also over a weight without permits.
    let held = lock().weight(2).permits(3).read().acquire().await.unwrap();
    assert_eq!(held.kind(), Kind::Read);
    held.release().await.unwrap();
    // A permit with `min_hold` stays taken: starts in a time are limited.
    let started = lock().permits(1).min_hold(min_hold).acquire();
    started.await.unwrap().release().await.unwrap();
    assert!(!is_free_for(lock().permits(1)).await);
    free_within(WAIT, &s.first).await.release().await.unwrap();
}
