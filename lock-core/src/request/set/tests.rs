use std::future::IntoFuture;
use std::time::Duration;

use super::*;
use crate::error::InvalidSetting;
use crate::guard::LockWatch;
use crate::manager::LockManager;
use crate::request::LockRequest;
use lock_protocol::kind::Kind;
use lock_protocol::loss::LossReason;
use lock_protocol::renew::Renew;

const SECOND: Duration = Duration::from_secs(1);

fn keys(set: &LockSet) -> Vec<&str> {
    set.guards().iter().map(LockGuard::key).collect()
}

#[test]
fn sets_are_send_sync_and_static() {
    fn check<T: Send + Sync + 'static>() {}
    check::<LockSet>();
    check::<LockRequest<Names>>();
    check::<LockWatch>();
    check::<LossSignal>();
}

#[tokio::test(start_paused = true)]
async fn names_are_locked_once_in_the_order_of_their_keys() {
    let locks = LockManager::in_memory();
    let set = locks.lock_all(["b", "a", "b", "c"]).await.unwrap();
    assert_eq!(keys(&set), ["lock:a", "lock:b", "lock:c"]);
    assert_eq!(set.fencing_token_of("b"), set.guards()[1].fencing_token());
    assert!(set.fencing_token_of("d").is_none());
    for name in ["a", "b", "c"] {
        assert!(locks.lock(name).try_acquire().await.unwrap().is_none());
    }
    set.renew().await.unwrap();
    assert!(set.watch().is_held());
    set.release().await.unwrap();
    for name in ["a", "b", "c"] {
        assert!(locks.lock(name).try_acquire().await.unwrap().is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn invalid_sets_lock_nothing() {
    let locks = LockManager::in_memory();
    let reason_of = |error| match error {
        LockError::Invalid(InvalidSetting::Kind { reason, .. }) => reason,
        other => panic!("{other}"),
    };
    let none = locks.lock_all(Vec::<String>::new()).acquire().await;
    assert_eq!(reason_of(none.unwrap_err()), InvalidKindReason::NoNames);
    let names = |count: u32| (0..count).map(|at| format!("n{at}"));
    let many = locks.lock_all(names(65)).try_acquire().await;
    assert_eq!(
        reason_of(many.unwrap_err()),
        InvalidKindReason::TooManyNames
    );
    let doubled = locks.lock_all(names(64).chain(names(64))).acquire().await;
    assert_eq!(doubled.unwrap().guards().len(), 64);
    let error = locks.lock_all(["a", "", "c"]).acquire().await.unwrap_err();
    assert!(
        matches!(error, LockError::Invalid(InvalidSetting::Name { .. })),
        "{error}"
    );
    let weight = locks.lock_all(["a"]).weight(2).acquire().await;
    assert_eq!(
        reason_of(weight.unwrap_err()),
        InvalidKindReason::WeightWithoutPermits
    );
    assert!(locks.lock("a").try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn set_with_a_busy_lock_holds_none_after_its_wait() {
    let locks = LockManager::in_memory();
    let busy = locks.lock("b").acquire().await.unwrap();
    let set = || locks.lock_all(["a", "b", "c"]);
    assert!(set().try_acquire().await.unwrap().is_none());
    let started = tokio::time::Instant::now();
    let error = set().wait(SECOND).acquire().await.unwrap_err();
    assert!(
        matches!(&error, LockError::Timeout { key, waited, .. } if &**key == "lock:b" && *waited >= SECOND),
        "{error}"
    );
    assert!(started.elapsed() <= SECOND + Duration::from_millis(250));
    for name in ["a", "c"] {
        assert!(locks.lock(name).try_acquire().await.unwrap().is_some());
    }
    busy.release().await.unwrap();
    let both = set().kind(Kind::Exclusive).wait(SECOND).await.unwrap();
    assert_eq!(both.guards().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn set_waits_for_each_of_its_locks() {
    let locks = LockManager::in_memory();
    let first = locks.lock("a").acquire().await.unwrap();
    let second = locks.lock("b").acquire().await.unwrap();
    let waiting = tokio::spawn(locks.lock_all(["b", "a"]).into_future());
    tokio::time::sleep(SECOND).await;
    drop(first);
    tokio::time::sleep(SECOND).await;
    // The set has the first lock, and waits for the second one.
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    drop(second);
    let set = waiting.await.unwrap().unwrap();
    assert!(!set.is_lost());
}

/// The lease of `a` ends while the set waits for `b`.
#[tokio::test(start_paused = true)]
async fn set_starts_again_when_a_lock_is_lost_on_the_way() {
    let locks = LockManager::in_memory();
    let busy = locks.lock("b").acquire().await.unwrap();
    let waiting = locks.lock_all(["a", "b"]).renew(Renew::Never).ttl(SECOND);
    let waiting = tokio::spawn(waiting.wait(SECOND * 10).into_future());
    tokio::time::sleep(SECOND * 3 / 2).await;
    drop(busy);
    let set = waiting.await.unwrap().unwrap();
    assert!(set.remaining() > Duration::ZERO);
    let tokens = ["a", "b"].map(|name| set.fencing_token_of(name).unwrap());
    let later = tokio::time::timeout(SECOND * 2, set.lost()).await;
    assert!(later.is_ok() && set.is_lost());
    assert_eq!(set.loss_reason(), Some(LossReason::Expired));
    drop((tokens, set));
}

#[tokio::test(start_paused = true)]
async fn watch_of_a_released_set_names_the_lock_that_was_lost() {
    let locks = LockManager::in_memory();
    let first = locks.lock("a").acquire().await.unwrap();
    let short = locks.lock("b").renew(Renew::Never).ttl(SECOND);
    let set = LockSet::new(vec![first, short.acquire().await.unwrap()]);
    let watch = set.watch();
    assert_eq!((watch.key(), watch.fencing_token()), ("lock:a", None));
    tokio::time::sleep(SECOND * 2).await;
    assert_eq!((watch.key(), watch.name()), ("lock:b", "b"));
    drop(set);
    assert_eq!(watch.key(), "lock:b");
    assert_eq!(watch.loss_reason(), Some(LossReason::Expired));
    assert!(format!("{watch:?}").contains("lock:a"));
}

#[tokio::test(start_paused = true)]
async fn body_of_a_set_is_dropped_when_one_lock_is_lost() {
    let locks = LockManager::in_memory();
    let request = locks.lock_all(["a", "b"]).renew(Renew::Never).ttl(SECOND);
    let error = request
        .run(async |_set| std::future::pending::<()>().await)
        .await
        .unwrap_err();
    assert!(error.is_lost(), "{error}");
    let value = locks
        .lock_all(["a", "b"])
        .run(async |set| set.guards().len());
    assert_eq!(value.await.unwrap(), 2);
    assert!(locks.lock("b").try_acquire().await.unwrap().is_some());
}

/// The control: single locks in written order stop each other, and sets of the same names do not.
#[tokio::test(start_paused = true)]
async fn locks_in_written_order_deadlock_and_sets_do_not() {
    let locks = LockManager::in_memory();
    let by_hand = async |names: [&'static str; 2]| {
        let _first = locks.lock(names[0]).wait(SECOND).acquire().await?;
        tokio::task::yield_now().await;
        locks.lock(names[1]).wait(SECOND).acquire().await
    };
    let (one, other) = tokio::join!(by_hand(["a", "b"]), by_hand(["b", "a"]));
    // Both waits end in the same moment, and the first to see it gives its lock to the other.
    let timed_out =
        |result: &Result<LockGuard, LockError>| matches!(result, Err(LockError::Timeout { .. }));
    assert!(timed_out(&one) || timed_out(&other), "{one:?} {other:?}");
    drop((one, other));
    let as_set = async |names: [&'static str; 2]| {
        let set = locks.lock_all(names).wait(SECOND).acquire().await;
        tokio::task::yield_now().await;
        set.map(drop)
    };
    let (one, other) = tokio::join!(as_set(["a", "b"]), as_set(["b", "a"]));
    assert!(one.is_ok() && other.is_ok());
}

#[tokio::test(start_paused = true)]
async fn set_and_lock_inside_each_other_would_deadlock() {
    let locks = LockManager::in_memory();
    let is_refused =
        |error: LockError| matches!(&error, LockError::WouldDeadlock { key } if &**key == "lock:b");
    let inside_lock = locks.lock("b").run(async |_held| {
        let none = locks.lock_all(["a", "b"]).try_acquire().await;
        assert!(none.unwrap().is_none());
        locks.lock_all(["a", "b"]).acquire().await.unwrap_err()
    });
    assert!(is_refused(inside_lock.await.unwrap()));
    let inside_set = locks
        .lock_all(["a", "b"])
        .run(async |_set| locks.lock("b").acquire().await.unwrap_err());
    assert!(is_refused(inside_set.await.unwrap()));
    assert!(locks.lock("b").acquire().await.is_ok());
}
