//! Work that is done once in a period. Dialects of other libraries and quorums refuse it.

use std::time::{Duration, Instant};

use lock_core::admin::LockStatus;
use lock_core::error::{InvalidKindReason, InvalidOncePerReason, InvalidSetting};
use lock_core::{LockError, LockRequest};
use test_support::fixtures::{AT_ONCE, SOON};

use super::subject::{NAME, Subject, WAIT, free_at_once, within};

/// Longer than any test takes.
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Returns whether the store keeps periods. A store that doesn't refuses each of them before it sends anything.
async fn keeps_periods(s: &Subject) -> bool {
    let refused = s.first.lock(NAME).once_per(DAY).acquire().await;
    match refused {
        Ok(held) => {
            held.release().await.unwrap();
            true
        }
        Err(LockError::Invalid(
            InvalidSetting::Dialect { .. }
            | InvalidSetting::OncePer {
                reason: InvalidOncePerReason::Quorum,
                ..
            },
        )) => {
            free_at_once(&s.first).await.release().await.unwrap();
            false
        }
        Err(other) => panic!("{other}"),
    }
}

fn request(s: &Subject, turn: usize) -> LockRequest {
    s.manager(turn).lock(NAME).once_per(DAY).wait(WAIT)
}

async fn expect_done(request: LockRequest) -> LockError {
    let error = within(AT_ONCE, request.acquire()).await.unwrap_err();
    assert!(error.is_done() && error.is_contended(), "{error}");
    error
}

/// Work that failed, was dropped or panicked leaves nothing. After it has succeeded, nobody gets the name.
pub(crate) async fn only_a_success_keeps_the_name_taken(s: &Subject) {
    if !keeps_periods(s).await {
        return;
    }
    let failed = request(s, 0).run_once(async |_| Err::<(), _>("failed"));
    assert_eq!(failed.await.unwrap(), Err("failed"));
    drop(request(s, 1).acquire().await.unwrap());
    let panics = request(s, 0);
    let panicked = tokio::spawn(async move {
        panics
            .run_once(async |_| -> Result<(), ()> { panic!("the body") })
            .await
    });
    assert!(panicked.await.unwrap_err().is_panic());
    let dropped = tokio::time::timeout(
        Duration::from_millis(20),
        request(s, 1).run_once(async |_| std::future::pending::<Result<(), ()>>().await),
    );
    assert!(dropped.await.is_err());

    let succeeded = within(SOON, request(s, 0).run_once(async |_| Ok::<_, ()>(7)));
    assert_eq!(succeeded.await.unwrap(), Ok(7));
    for turn in [0, 1] {
        let error = expect_done(request(s, turn)).await;
        let LockError::Done { by, free_in, .. } = error else {
            panic!("{error}");
        };
        assert_eq!(&*by, "first");
        assert!(free_in <= DAY && free_in > DAY - Duration::from_secs(60));
        // Callers that have no period, and other kinds.
        expect_done(s.manager(turn).lock(NAME)).await;
        expect_done(s.manager(turn).lock(NAME).wait(Duration::ZERO).read()).await;
        let tried = s.manager(turn).lock(NAME).try_acquire().await.unwrap();
        assert!(tried.is_none());
    }
}

/// The period counts from the start of the work, and ends by itself.
pub(crate) async fn period_counts_from_the_start(s: &Subject) {
    if !keeps_periods(s).await {
        return;
    }
    let period = Duration::from_secs(3);
    let held = s.first.lock(NAME).once_per(period).acquire().await.unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    held.complete().await.unwrap();
    let error = expect_done(s.second.lock(NAME)).await;
    let LockError::Done { free_in, .. } = error else {
        panic!("{error}");
    };
    assert!(free_in <= Duration::from_secs(1), "{free_in:?}");
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    free_at_once(&s.second).await.release().await.unwrap();
    // A body that outlasts the period leaves nothing.
    let held = s.first.lock(NAME).once_per(Duration::from_millis(100));
    let held = held.acquire().await.unwrap();
    tokio::time::sleep(Duration::from_millis(150)).await;
    held.complete().await.unwrap();
    free_at_once(&s.second).await.release().await.unwrap();
}

/// Callers that wait while the work is done learn it within a moment, and leave nothing behind.
pub(crate) async fn waiters_learn_that_the_work_is_done(s: &Subject) {
    if !keeps_periods(s).await {
        return;
    }
    let held = request(s, 0).acquire().await.unwrap();
    let mut waiters = Vec::new();
    for turn in 0..20 {
        waiters.push(s.start_waiter(request(s, turn), turn + 1).await);
    }
    held.complete().await.unwrap();
    let completed = Instant::now();
    for waiter in waiters {
        let ended = within(SOON, waiter).await.expect("it does not panic");
        assert!(ended.unwrap_err().is_done());
    }
    let took = completed.elapsed();
    // Waiters without notifications poll.
    assert!(took < AT_ONCE || !s.notifies, "{took:?}");
    let info = s.first.admin().inspect(NAME).await.unwrap();
    assert_eq!(info.waiters_total, 0);
}

/// Operators see what is done, and free it.
pub(crate) async fn operator_sees_and_frees_what_is_done(s: &Subject) {
    if !keeps_periods(s).await {
        return;
    }
    let before = std::time::SystemTime::now() - Duration::from_secs(2);
    request(s, 0)
        .acquire()
        .await
        .unwrap()
        .complete()
        .await
        .unwrap();
    let seen = s.second.admin().inspect(NAME).await.unwrap();
    let LockStatus::Done {
        since,
        free_at,
        label,
        ..
    } = &seen.status
    else {
        panic!("{seen:?}");
    };
    assert_eq!(&**label, "first");
    assert!(seen.holder().is_none() && seen.holders.is_empty());
    let since = since.expect("the value has it");
    let free_at = free_at.expect("the key has an expiry");
    let period = free_at.duration_since(since).unwrap();
    assert!(period.abs_diff(DAY) < Duration::from_secs(1), "{period:?}");
    assert!(since > before);
    assert!(s.first.holder(NAME).await.unwrap().is_none());
    let page = s.first.admin().list("*").await.unwrap();
    assert!(matches!(page.locks[0].status, LockStatus::Done { .. }));
    let released = s.second.admin().force_release(NAME).expect_unchanged(&seen);
    let released = released.await.unwrap();
    assert_eq!(
        (released.previous, released.free_in),
        (None, Duration::ZERO)
    );
    request(s, 1)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

/// All locks of a set are done together, and one that is done keeps the set from the others.
pub(crate) async fn set_is_done_as_a_whole(s: &Subject) {
    if !keeps_periods(s).await {
        return;
    }
    let names = ["import:a", "import:b"];
    let set = || s.first.lock_all(names).once_per(DAY).wait(WAIT);
    let failed = set().run_once(async |_| Err::<(), _>("failed"));
    assert_eq!(failed.await.unwrap(), Err("failed"));
    set().acquire().await.unwrap().complete().await.unwrap();
    for name in names {
        let error = s.second.lock(name).acquire().await.unwrap_err();
        assert!(error.is_done(), "{error}");
    }
    let others = [names[1], "import:0"];
    // After a wait, the lock before it is released in the background.
    for wait in [Duration::ZERO, WAIT] {
        let set = s.second.lock_all(others).wait(wait).acquire();
        let error = within(AT_ONCE, set).await.unwrap_err();
        assert_eq!(error.key(), Some(&*format!("{}{}", s.prefix, names[1])));
        assert!(error.is_done(), "{error}");
    }
    let other = s.first.lock(others[1]).wait(WAIT).acquire();
    within(SOON, other).await.unwrap().release().await.unwrap();
}

/// What a period can't be combined with is refused before anything is sent.
pub(crate) async fn invalid_periods_are_refused(s: &Subject) {
    if !keeps_periods(s).await {
        return;
    }
    let lock = || s.first.lock(NAME);
    let refused = async |request: LockRequest| match request.acquire().await.unwrap_err() {
        LockError::Invalid(invalid) => invalid,
        other => panic!("{other}"),
    };
    for period in [
        Duration::ZERO,
        Duration::from_millis(99),
        DAY * 366 + Duration::from_millis(1),
    ] {
        let invalid = refused(lock().once_per(period)).await;
        let InvalidSetting::OncePer { reason, .. } = invalid else {
            panic!("{invalid}");
        };
        assert_eq!(
            reason.to_string(),
            format!("the period is {period:?}; use at least 100 ms and at most 366 days")
        );
    }
    for request in [lock().read(), lock().permits(2)] {
        let invalid = refused(request.once_per(DAY)).await;
        let InvalidSetting::Kind { reason, .. } = invalid else {
            panic!("{invalid}");
        };
        assert_eq!(reason, InvalidKindReason::OncePer);
    }
    let reason_of = |error: LockError| match error {
        LockError::Invalid(InvalidSetting::OncePer { reason, .. }) => reason,
        other => panic!("{other}"),
    };
    let both = lock().once_per(DAY).min_hold(Duration::from_secs(1));
    assert_eq!(
        reason_of(both.acquire().await.unwrap_err()),
        InvalidOncePerReason::MinHold
    );
    let run = lock().once_per(DAY).run(async |_| ()).await.unwrap_err();
    assert_eq!(reason_of(run), InvalidOncePerReason::Run);
    let lead = lock().once_per(DAY).lead(async |_| ()).await.unwrap_err();
    assert_eq!(reason_of(lead), InvalidOncePerReason::Leader);
    let missing = lock().run_once(async |_| Ok::<_, ()>(())).await;
    assert_eq!(
        reason_of(missing.unwrap_err()),
        InvalidOncePerReason::Missing
    );
    let held = lock().acquire().await.unwrap();
    assert_eq!(
        reason_of(held.complete().await.unwrap_err()),
        InvalidOncePerReason::Missing
    );
    // Nothing stays taken.
    let held = lock().wait(WAIT).once_per(DAY * 366).acquire();
    let held = within(SOON, held).await.unwrap();
    let refused = held.downgrade().await.unwrap_err();
    assert!(matches!(
        refused,
        LockError::Invalid(InvalidSetting::Kind {
            reason: InvalidKindReason::Downgrade,
            ..
        })
    ));
}

/// The success stays, even if its future is dropped at any poll: what was sent, the drop repeats.
pub(crate) async fn dropped_completion_still_counts(s: &Subject) {
    if !keeps_periods(s).await {
        return;
    }
    let held = request(s, 0).acquire().await.unwrap();
    let mut completing = Box::pin(held.complete());
    let _first_poll = tests::poll_once(&mut completing).await;
    drop(completing);
    let error = within(SOON, request(s, 1).acquire()).await.unwrap_err();
    assert!(error.is_done(), "{error}");
}
