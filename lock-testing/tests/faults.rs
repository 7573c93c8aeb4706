//! Faults on command, on tokio's paused clock.

use std::time::Duration;

use lock_core::error::{BackendErrorKind, InvalidSetting};
use lock_core::{LockError, LockManager, LossReason, Renew};
use lock_testing::{Command, Faults, in_memory_with_faults};
use tokio::time::{Instant, sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);

fn locks() -> (LockManager, Faults) {
    let made = in_memory_with_faults(LockManager::builder());
    made.unwrap_or_else(|error| unreachable!("the settings are valid: {error}"))
}

fn kind(error: &LockError) -> Option<BackendErrorKind> {
    match error {
        LockError::Backend(error) => Some(error.kind()),
        _ => None,
    }
}

#[tokio::test(start_paused = true)]
async fn lost_lock_is_reported_everywhere_and_goes_to_the_next_waiter() {
    let (locks, faults) = locks();
    let guard = locks.lock("a").await.unwrap();
    let other = locks.lock("b").await.unwrap();
    let waiting = tokio::spawn(locks.lock("a").wait(SECOND).acquire());
    let lost = tokio::spawn(guard.lost());
    tokio::task::yield_now().await;
    assert!(faults.lose("a"));
    assert!(guard.is_lost() && guard.remaining().is_zero() && !other.is_lost());
    lost.await.unwrap();
    let next = waiting.await.unwrap().unwrap();
    assert!(next.fencing_token() > guard.fencing_token());
    assert!(guard.renew().await.unwrap_err().is_lost());
    assert!(guard.release().await.unwrap_err().is_lost());
    // The release of the lost guard has not touched the next holder.
    assert!(!next.is_lost());
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    assert_eq!(locks.stats().lost, 1);

    assert!(!faults.lose("c") && !faults.lose(""));
    assert_eq!(faults.lose_all(), 2);
    assert_eq!(faults.lose_all(), 0);
    assert!(next.is_lost() && other.is_lost());
    assert!(locks.lock("b").try_acquire().await.unwrap().is_some());
}

#[lock_core::distributed_lock(name = "a", ttl = "1s")]
async fn annotated(faults: &Faults) -> Result<(), LockError> {
    faults.lose_all();
    sleep(SECOND).await;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn body_of_a_lost_lock_is_dropped() {
    let (locks, faults) = locks();
    let run = locks.lock("a").run(async |_| {
        faults.lose("a");
        sleep(SECOND).await;
    });
    assert!(run.await.unwrap_err().is_lost());

    let body = locks.scope(annotated(&faults));
    assert!(body.await.unwrap_err().is_lost());
}

#[tokio::test(start_paused = true)]
async fn released_lock_cannot_be_lost() {
    let (locks, faults) = locks();
    let watch = {
        let guard = locks.lock("a").await.unwrap();
        guard.watch()
    };
    assert!(!faults.lose("a"));
    assert!(!watch.is_lost());
}

#[tokio::test(start_paused = true)]
async fn backend_that_is_down_fails_after_the_wait_and_works_again_when_it_is_up() {
    let (locks, faults) = locks();
    let held = locks.lock("held").await.unwrap();
    faults.down();
    assert!(faults.is_down());
    let started = Instant::now();
    let error = locks.lock("a").wait(3 * SECOND).await.unwrap_err();
    assert_eq!(kind(&error), Some(BackendErrorKind::Unreachable));
    assert!(error.is_retryable());
    assert_eq!(started.elapsed(), 3 * SECOND);
    let error = locks.lock("a").try_acquire().await.unwrap_err();
    assert_eq!(kind(&error), Some(BackendErrorKind::Unreachable));
    assert_eq!(started.elapsed(), 4 * SECOND);

    let error = held.renew().await.unwrap_err();
    assert_eq!(kind(&error), Some(BackendErrorKind::Unreachable));
    assert!(!held.is_lost());
    let error = held.release().await.unwrap_err();
    assert_eq!(kind(&error), Some(BackendErrorKind::Unreachable));

    let waiting = tokio::spawn(locks.lock("held").wait(3 * SECOND).acquire());
    sleep(SECOND).await;
    assert!(!waiting.is_finished());
    faults.up();
    // The guard that was dropped meanwhile is released now.
    let _next = waiting.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn waiter_in_the_queue_survives_an_outage() {
    let (locks, faults) = locks();
    let held = locks.lock("a").await.unwrap();
    let waiting = tokio::spawn(locks.lock("a").wait(60 * SECOND).acquire());
    sleep(SECOND).await;
    faults.down();
    drop(held);
    sleep(10 * SECOND).await;
    assert!(!waiting.is_finished());
    faults.up();
    let _next = waiting.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn command_is_refused_with_the_kind_until_it_is_accepted() {
    let (locks, faults) = locks();
    let started = Instant::now();
    faults.refuse(Command::Acquire, BackendErrorKind::Permission);
    for _ in 0..2 {
        let error = locks.lock("a").await.unwrap_err();
        assert_eq!(kind(&error), Some(BackendErrorKind::Permission));
    }
    assert_eq!(
        (started.elapsed(), faults.calls(Command::Acquire)),
        (Duration::ZERO, 2)
    );
    faults.accept(Command::Acquire);
    let guard = locks.lock("a").await.unwrap();

    // An acquire that waits tries again after a temporary error.
    faults.refuse_next(Command::Acquire, BackendErrorKind::Loading);
    let _retried = locks.lock("b").await.unwrap();
    faults.refuse_next(Command::Acquire, BackendErrorKind::Loading);
    let error = locks.lock("c").try_acquire().await.unwrap_err();
    assert_eq!(kind(&error), Some(BackendErrorKind::Loading));

    faults.refuse_next(Command::Renew, BackendErrorKind::OutOfMemory);
    assert!(guard.renew().await.is_err());
    guard.renew().await.unwrap();
    assert_eq!(locks.stats().renewals_failed, 1);

    faults.refuse(Command::Release, BackendErrorKind::NotPrimary);
    drop(guard);
    assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
    faults.accept(Command::Release);
    assert!(locks.lock("a").try_acquire().await.unwrap().is_some());
    assert!(faults.calls(Command::Release) > 0 && faults.calls(Command::Renew) == 2);
}

#[tokio::test(start_paused = true)]
async fn delay_takes_its_time_and_a_dropped_acquire_leaves_nothing_behind() {
    let (locks, faults) = locks();
    faults.delay(Command::Acquire, SECOND / 2);
    let started = Instant::now();
    let guard = locks.lock("a").await.unwrap();
    assert_eq!(started.elapsed(), SECOND / 2);
    guard.release().await.unwrap();

    let dropped = timeout(SECOND / 4, locks.lock("a").acquire()).await;
    assert!(dropped.is_err());
    sleep(SECOND).await;
    faults.delay(Command::Acquire, Duration::ZERO);
    let guard = locks.lock("a").try_acquire().await.unwrap().unwrap();

    // A reply later than the command timeout.
    faults.delay(Command::Release, 2 * SECOND);
    let error = guard.release().await.unwrap_err();
    assert_eq!(kind(&error), Some(BackendErrorKind::TimedOut));
    // The release continued in the background.
    assert!(locks.lock("a").try_acquire().await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn acquire_whose_reply_is_lost_leaves_nothing_behind() {
    let (locks, faults) = locks();
    let is_free = async || {
        let guard = locks.lock("a").try_acquire().await;
        guard.unwrap().is_some()
    };
    faults.lose_replies(Command::Acquire);
    let started = Instant::now();
    let error = locks.lock("a").try_acquire().await.unwrap_err();
    assert_eq!(kind(&error), Some(BackendErrorKind::TimedOut));
    assert_eq!(started.elapsed(), SECOND);
    assert_eq!(
        faults.calls(Command::Release),
        1,
        "the acquire had an effect"
    );
    faults.accept(Command::Acquire);
    assert!(is_free().await);

    // The future is dropped while it waits for the reply.
    faults.lose_next_reply(Command::Acquire);
    let dropped = timeout(SECOND / 4, locks.lock("a").acquire()).await;
    assert!(dropped.is_err());
    assert!(is_free().await);

    // A waiter whose entry is in the queue.
    let other = faults.hold("a").unwrap();
    faults.lose_replies(Command::Acquire);
    let late = locks.lock("a").wait(3 * SECOND).await;
    assert!(late.is_err());
    faults.accept(Command::Acquire);
    drop(other);
    assert!(is_free().await);
}

#[tokio::test(start_paused = true)]
async fn waiter_whose_reply_is_lost_gets_the_lock_with_the_next_command() {
    let (locks, faults) = locks();
    faults.lose_next_reply(Command::Acquire);
    let guard = locks.lock("a").wait(10 * SECOND).await.unwrap();
    assert!(faults.calls(Command::Acquire) > 1);
    faults.lose_next_reply(Command::Renew);
    let error = guard.renew().await.unwrap_err();
    assert_eq!(kind(&error), Some(BackendErrorKind::TimedOut));
    assert!(!guard.is_lost());
    guard.renew().await.unwrap();
    faults.lose_replies(Command::Release);
    let error = guard.release().await.unwrap_err();
    assert_eq!(kind(&error), Some(BackendErrorKind::TimedOut));
    assert!(locks.lock("a").try_acquire().await.unwrap().is_some());
}

/// The waiter leaves the queue without a reply, and the guard that it waited for is released meanwhile.
#[tokio::test(start_paused = true)]
async fn timeout_names_this_process_also_if_its_guard_was_released_since() {
    let (locks, faults) = locks();
    let held = locks.lock("a").await.unwrap();
    let waiting = tokio::spawn(locks.lock("a").wait(SECOND).acquire());
    faults.lose_next_reply(Command::Release);
    sleep(SECOND + Duration::from_millis(50)).await;
    assert!(!waiting.is_finished(), "the reply was not lost");
    held.release().await.unwrap();
    let error = waiting.await.unwrap().unwrap_err();
    assert!(matches!(error, LockError::Timeout { .. }), "{error}");
    assert!(error.holder().unwrap().is_own(), "{error}");
}

#[tokio::test(start_paused = true)]
async fn other_holder_makes_the_lock_contended_until_it_is_dropped() {
    let (locks, faults) = locks();
    let other = faults.hold("a").unwrap();
    let error = locks.lock("a").wait(SECOND).await.unwrap_err();
    assert!(matches!(error, LockError::Timeout { .. }), "{error}");
    let holder = error.holder().unwrap();
    assert_eq!(&*holder.label, "another holder");
    assert!(!holder.is_own());
    let waiting = tokio::spawn(locks.lock("a").wait(SECOND).acquire());
    tokio::task::yield_now().await;
    drop(other);
    let guard = waiting.await.unwrap().unwrap();
    assert!(matches!(faults.hold("a"), Err(LockError::Contended { .. })));
    assert!(matches!(
        faults.hold(""),
        Err(LockError::Invalid(InvalidSetting::Name { .. }))
    ));
    guard.release().await.unwrap();

    // As a holder that died: its lease ends after the ttl.
    let dead = faults.hold_for("a", 3 * SECOND).unwrap();
    let started = Instant::now();
    let _next = locks.lock("a").wait(10 * SECOND).await.unwrap();
    assert!(started.elapsed() >= 3 * SECOND, "{:?}", started.elapsed());
    drop(dead);
    let invalid = faults.hold_for("b", Duration::ZERO);
    assert!(matches!(
        invalid,
        Err(LockError::Invalid(InvalidSetting::Ttl { .. }))
    ));
}

#[tokio::test]
async fn invalid_setting_is_an_error() {
    let builder = LockManager::builder().default_ttl(Duration::ZERO);
    let made = in_memory_with_faults(builder);
    assert!(matches!(
        made,
        Err(LockError::Invalid(InvalidSetting::Ttl { .. }))
    ));
}

/// The ways in which all renewals fail.
const FAULTS: [fn(&Faults); 4] = [
    |faults| faults.refuse(Command::Renew, BackendErrorKind::OutOfMemory),
    |faults| faults.lose_replies(Command::Renew),
    |faults| faults.delay(Command::Renew, 60 * SECOND),
    Faults::down,
];

/// Ends all of them.
fn mend(faults: &Faults) {
    faults.accept(Command::Renew);
    faults.delay(Command::Renew, Duration::ZERO);
    faults.up();
}

#[tokio::test(start_paused = true)]
async fn lock_whose_renewals_fail_expires_with_its_ttl() {
    for fault in FAULTS {
        let (locks, faults) = locks();
        let guard = locks.lock("a").ttl(3 * SECOND).await.unwrap();
        let waiting = tokio::spawn(locks.lock("a").wait(60 * SECOND).acquire());
        // For longer than the ttl, nothing ends it.
        sleep(20 * SECOND).await;
        assert!(!guard.is_lost() && faults.calls(Command::Renew) == 0);
        let began = Instant::now();
        fault(&faults);
        assert!(guard.remaining() <= 3 * SECOND && !guard.is_lost());
        guard.lost().await;
        let lasted = began.elapsed();
        // The library counts the loss in a task of its own.
        tokio::task::yield_now().await;
        assert!(lasted > 2 * SECOND && lasted <= 3 * SECOND, "{lasted:?}");
        assert_eq!(guard.loss_reason(), Some(LossReason::Expired));
        assert!(locks.stats().renewals_failed > 0 && faults.calls(Command::Renew) > 0);
        assert_eq!(locks.stats().lost, 1);
        mend(&faults);
        let next = waiting.await.unwrap().unwrap();
        assert!(next.fencing_token() > guard.fencing_token());
        assert!(guard.renew().await.unwrap_err().is_lost());
        sleep(60 * SECOND).await;
        assert!(!next.is_lost());
    }
}

#[tokio::test(start_paused = true)]
async fn lock_that_was_acquired_while_renewals_fail_expires_too() {
    let (locks, faults) = locks();
    faults.refuse(Command::Renew, BackendErrorKind::Unreachable);
    let body = locks.lock("a").ttl(SECOND).run(async |_| {
        sleep(60 * SECOND).await;
    });
    let error = body.await.unwrap_err();
    assert!(error.is_lost(), "{error}");
    let both = locks.lock_all(["a", "b"]).ttl(SECOND).await.unwrap();
    both.lost().await;
    assert_eq!(both.loss_reason(), Some(LossReason::Expired));
    let reader = locks.lock("a").read().ttl(SECOND).await.unwrap();
    reader.lost().await;
    tokio::task::yield_now().await;
    assert!(
        locks
            .lock("a")
            .write()
            .try_acquire()
            .await
            .unwrap()
            .is_some()
    );
}

/// A clock that jumps leaves no time for a renewal.
#[tokio::test(start_paused = true)]
async fn lock_whose_renewals_fail_is_free_after_a_jump_of_the_clock() {
    let (locks, faults) = locks();
    let guard = locks.lock("a").ttl(SECOND).await.unwrap();
    tokio::time::advance(60 * SECOND).await;
    assert!(!guard.is_lost());
    faults.refuse(Command::Renew, BackendErrorKind::Unreachable);
    let waiting = tokio::spawn(locks.lock("a").wait(600 * SECOND).acquire());
    tokio::task::yield_now().await;
    tokio::time::advance(60 * SECOND).await;
    assert!(guard.is_lost());
    let next = timeout(SECOND, waiting).await.unwrap().unwrap().unwrap();
    assert!(next.fencing_token() > guard.fencing_token());
    drop(next);
    let alone = locks.lock("b").ttl(SECOND).await.unwrap();
    tokio::time::advance(60 * SECOND).await;
    assert!(locks.lock("b").try_acquire().await.unwrap().is_some());
    assert!(alone.is_lost());
}

#[tokio::test(start_paused = true)]
async fn lock_is_held_on_when_renewals_succeed_before_its_lease_ends() {
    for fault in FAULTS {
        let (locks, faults) = locks();
        let guard = locks.lock("a").ttl(3 * SECOND).await.unwrap();
        let limited = locks.lock("b").ttl(3 * SECOND).max_hold(30 * SECOND);
        let limited = limited.await.unwrap();
        let never = locks.lock("c").ttl(9 * SECOND).renew(Renew::Never);
        let never = never.await.unwrap();
        let began = Instant::now();
        for _ in 0..4 {
            fault(&faults);
            sleep(2 * SECOND).await;
            mend(&faults);
        }
        tokio::time::advance(20 * SECOND).await;
        assert!(!guard.is_lost() && !limited.is_lost());
        assert!(never.is_lost());
        assert_eq!(guard.remaining(), 3 * SECOND);
        assert!(locks.lock("a").try_acquire().await.unwrap().is_none());
        limited.lost().await;
        assert_eq!(limited.loss_reason(), Some(LossReason::MaxHold));
        assert_eq!(began.elapsed(), 30 * SECOND);
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn released_lock_is_not_renewed_while_renewals_fail() {
    let (locks, faults) = locks();
    let guard = locks.lock("a").ttl(3 * SECOND).await.unwrap();
    faults.refuse(Command::Renew, BackendErrorKind::Unreachable);
    guard.release().await.unwrap();
    let next = locks.lock("a").ttl(90 * SECOND).await.unwrap();
    sleep(20 * SECOND).await;
    assert!(!next.is_lost() && faults.calls(Command::Renew) == 0);
    assert_eq!(locks.stats().lost, 0);
}

/// With a ttl of 30 s, less than half of the lease is left after 15 s. The renewals begin after 10 s.
const AT_RISK: std::ops::Range<Duration> =
    Duration::from_millis(14_800)..Duration::from_millis(15_200);

#[tokio::test(start_paused = true)]
async fn lock_is_at_risk_in_an_outage_until_a_renewal_succeeds() {
    let (locks, faults) = locks();
    let held = locks.lock("a").await.unwrap();
    let watch = held.watch();
    for _ in 0..2 {
        assert!(!held.is_at_risk() && !watch.is_at_risk());
        let started = Instant::now();
        faults.down();
        let waiting = tokio::spawn(watch.at_risk());
        held.at_risk().await;
        assert!(
            AT_RISK.contains(&started.elapsed()),
            "{:?}",
            started.elapsed()
        );
        waiting.await.unwrap();
        assert_eq!(started.elapsed().as_millis() / 100, 148);
        assert!(held.is_at_risk() && watch.is_at_risk() && !held.is_lost());
        sleep(SECOND).await;
        assert!(held.is_at_risk());
        // It completes at once while the lock is at risk.
        timeout(Duration::ZERO, held.at_risk()).await.unwrap();
        faults.up();
    }
    assert!(!held.is_at_risk());
    faults.down();
    held.lost().await;
    assert!(!held.is_at_risk(), "it is lost");
    timeout(Duration::ZERO, held.at_risk()).await.unwrap();
}

/// The renewal is sent, and its reply does not come.
#[tokio::test(start_paused = true)]
async fn renewal_that_hangs_is_a_risk() {
    let (locks, faults) =
        in_memory_with_faults(LockManager::builder().command_timeout(60 * SECOND)).unwrap();
    let held = locks.lock("a").await.unwrap();
    let started = Instant::now();
    faults.lose_replies(Command::Renew);
    held.at_risk().await;
    assert!(
        AT_RISK.contains(&started.elapsed()),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(
        (faults.calls(Command::Renew), locks.stats().renewals_failed),
        (1, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn set_is_at_risk_with_one_of_its_locks() {
    let (locks, faults) = locks();
    let set = locks.lock_all(["a", "b"]).await.unwrap();
    faults.down();
    sleep(12 * SECOND).await;
    assert!(!set.is_at_risk());
    set.at_risk().await;
    assert!(set.is_at_risk() && set.watch().is_at_risk());
    faults.up();
    assert!(!set.is_at_risk());
    let mut at_risk = set.watch().at_risk();
    timeout(3600 * SECOND, &mut at_risk).await.unwrap_err();
    faults.lose("b");
    at_risk.await;
    assert!(set.is_lost() && !set.is_at_risk());
}

#[tokio::test(start_paused = true)]
async fn lock_that_no_renewal_could_save_is_never_at_risk() {
    let (locks, faults) = locks();
    let request = locks.lock("a").ttl(SECOND).renew(Renew::Never);
    let never = request.await.unwrap();
    let started = Instant::now();
    let mut at_risk = never.at_risk();
    while timeout(SECOND / 50, &mut at_risk).await.is_err() {
        assert!(!never.is_at_risk());
    }
    assert!(
        never.is_lost() && started.elapsed() > SECOND / 2,
        "it completes at the loss"
    );

    let bounded = locks
        .lock("b")
        .ttl(SECOND)
        .max_hold(2 * SECOND)
        .await
        .unwrap();
    sleep(SECOND + SECOND / 10).await;
    faults.down();
    // It is confirmed for the rest of the two seconds.
    while !bounded.is_lost() {
        assert!(!bounded.is_at_risk());
        sleep(SECOND / 50).await;
    }
    assert_eq!(bounded.loss_reason(), Some(LossReason::MaxHold));
}

#[tokio::test(start_paused = true)]
async fn term_tells_the_risk() {
    let (locks, faults) = locks();
    let led = locks.lock("a").lead(async |term| {
        faults.down();
        term.at_risk().await;
        let told = (term.is_at_risk(), term.is_lost());
        faults.up();
        told
    });
    assert_eq!(led.await.unwrap(), (true, false));
}

#[tokio::test(start_paused = true)]
async fn released_lock_is_not_at_risk() {
    let (locks, faults) = locks();
    let held = locks.lock("a").await.unwrap();
    let (watch, at_risk) = (held.watch(), held.at_risk());
    faults.down();
    let waiting = tokio::spawn(at_risk);
    sleep(SECOND).await;
    drop(held);
    timeout(60 * SECOND, waiting).await.unwrap_err();
    assert!(!watch.is_at_risk());
}
