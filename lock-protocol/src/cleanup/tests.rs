use super::*;
use crate::dialect::Dialect;
use crate::key::LockName;
use crate::kind::Kind;

const TIMEOUT: Duration = Duration::from_millis(500);

fn at(ms: u64) -> Moment {
    Moment::from_millis(ms)
}

fn request() -> ReleaseRequest {
    ReleaseRequest {
        key: LockKey::new("", &LockName::from("k")).unwrap(),
        owner_id: OwnerId::from_number(1),
        ttl: Ttl::new(Duration::from_secs(1)).unwrap(),
        entries: Vec::new(),
        origin: None,
        unconfirmed: None,
        keep: Keep::Nothing,
        subject: ReleaseSubject::Guard,
        kind: Kind::Exclusive,
        label: "".into(),
    }
}

/// A cancel of an acquire that may take effect until server time 100.
fn unconfirmed() -> ReleaseRequest {
    ReleaseRequest {
        origin: Some(1),
        subject: ReleaseSubject::Acquire,
        unconfirmed: Some(Unconfirmed::new(ServerMs::new(100), 0, at(0), TIMEOUT)),
        ..request()
    }
}

fn sent(request: ReleaseRequest) -> Cleanup {
    let mut cleanup = Cleanup::new(request, at(0), TIMEOUT);
    assert_eq!(cleanup.next_step(at(0)), CleanupStep::Send);
    cleanup.on_send();
    assert_eq!(cleanup.next_step(at(0)), CleanupStep::AwaitReply);
    cleanup
}

fn outcome(server_ms: u64) -> ReleaseOutcome {
    ReleaseOutcome::without_waiters(false, ServerMs::new(server_ms))
}

#[test]
fn reply_finishes_a_release() {
    let mut cleanup = sent(request());
    cleanup.on_reply(&outcome(0), at(1));
    assert_eq!(cleanup.next_step(at(1)), CleanupStep::Finished);
}

#[test]
fn cancel_is_repeated_until_no_copy_of_the_acquire_can_take_effect() {
    let mut cleanup = sent(unconfirmed());
    cleanup.on_reply(&outcome(100), at(50));
    assert_eq!(cleanup.next_step(at(50)), CleanupStep::WaitUntil(at(51)));
    assert_eq!(cleanup.request().origin, None, "the next copy may overtake");
    cleanup.on_send();
    cleanup.on_reply(&outcome(40), at(52));
    assert_eq!(cleanup.next_step(at(52)), CleanupStep::WaitUntil(at(113)));
    cleanup.on_send();
    cleanup.on_reply(&outcome(101), at(113));
    assert_eq!(cleanup.next_step(at(113)), CleanupStep::Finished);
}

/// After a failover, the clock of the new primary says nothing about the time limit of the acquire.
#[test]
fn reply_of_another_process_confirms_a_cancel_by_the_local_clock() {
    let mut cleanup = sent(ReleaseRequest {
        ttl: Ttl::new(Duration::from_secs(5)).unwrap(),
        ..unconfirmed()
    });
    cleanup.on_reply(&outcome(9_000).told_by(2), at(50));
    // Two command timeouts and a second.
    assert_eq!(cleanup.next_step(at(50)), CleanupStep::WaitUntil(at(2_001)));
    cleanup.on_send();
    cleanup.on_reply(&outcome(0).told_by(2), at(2_001));
    assert_eq!(cleanup.next_step(at(2_001)), CleanupStep::Finished);
}

#[test]
fn clock_of_another_process_is_not_called_set_back() {
    let mut cleanup = sent(unconfirmed());
    // The lease of a second and two timeouts have ended.
    cleanup.on_reply(&outcome(0).told_by(2), at(2_000));
    let step = cleanup.next_step(at(2_000));
    assert_eq!(step, CleanupStep::GaveUp(GiveUpReason::Expired));
}

#[test]
fn reply_without_a_time_confirms_only_what_has_arrived() {
    let without_time = ReleaseOutcome {
        server_ms: None,
        ..outcome(0)
    };
    let mut cleanup = sent(request());
    cleanup.on_reply(&without_time, at(1));
    assert_eq!(cleanup.next_step(at(1)), CleanupStep::Finished);
    let mut cleanup = sent(unconfirmed());
    cleanup.on_reply(&without_time, at(1));
    assert_eq!(cleanup.next_step(at(1)), CleanupStep::WaitUntil(at(102)));
}

#[test]
fn release_is_plain_when_it_only_frees_a_lock() {
    assert!(request().is_plain(0) && !request().is_plain(1));
    assert!(!unconfirmed().is_plain(0));
    let entry = "6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 s 2000 1 c me";
    let waiting = ReleaseRequest {
        entries: vec![QueueEntry::parse(entry).unwrap()],
        ..request()
    };
    assert!(!waiting.is_plain(0));
}

#[test]
fn dead_waiters_are_removed_at_once() {
    let mut cleanup = sent(request());
    let more = ReleaseOutcome {
        more: true,
        ..outcome(0)
    };
    cleanup.on_reply(&more, at(1));
    assert_eq!(cleanup.next_step(at(1)), CleanupStep::Send);
}

/// A server that always tells of more dead waiters is not asked forever.
#[test]
fn removal_of_dead_waiters_ends() {
    let more = ReleaseOutcome {
        more: true,
        ..outcome(0)
    };
    let mut cleanup = sent(request());
    // Ten command timeouts after the first reply.
    for ms in [1_500, 2_000, 6_499] {
        cleanup.on_reply(&more, at(ms));
        assert_eq!(cleanup.next_step(at(ms)), CleanupStep::Send);
    }
    cleanup.on_reply(&more, at(6_500));
    assert_eq!(cleanup.next_step(at(6_500)), CleanupStep::Finished);

    let mut cancel = sent(unconfirmed());
    let more = ReleaseOutcome {
        more: true,
        ..outcome(50)
    };
    cancel.on_reply(&more, at(2_000));
    assert_eq!(cancel.next_step(at(2_000)), CleanupStep::Send);
    cancel.on_reply(&more, at(7_000));
    let reason = GiveUpReason::ClockSetBack;
    assert_eq!(cancel.next_step(at(7_000)), CleanupStep::GaveUp(reason));
}

#[test]
fn cancel_is_given_up_when_the_clock_was_set_back() {
    let mut cleanup = sent(unconfirmed());
    // Two command timeouts and the ttl.
    cleanup.on_reply(&outcome(50), at(2_000));
    let reason = GiveUpReason::ClockSetBack;
    assert_eq!(cleanup.next_step(at(2_000)), CleanupStep::GaveUp(reason));
}

#[test]
fn dead_waiters_are_removed_also_when_the_clock_was_set_back() {
    let mut cleanup = sent(unconfirmed());
    let more = ReleaseOutcome {
        more: true,
        ..outcome(50)
    };
    cleanup.on_reply(&more, at(2_000));
    assert_eq!(cleanup.next_step(at(2_000)), CleanupStep::Send);
}

#[test]
fn cancel_whose_sender_panicked_still_follows_its_acquire() {
    let mut cleanup = sent(unconfirmed());
    cleanup.on_panic(at(100));
    assert_eq!(cleanup.request().origin, Some(1));
    assert_eq!(cleanup.next_step(at(99)), CleanupStep::WaitUntil(at(100)));
}

#[test]
fn failed_release_is_repeated_with_growing_pauses_until_the_lease_has_ended() {
    let mut cleanup = sent(request());
    let mut pauses = Vec::new();
    let mut now = at(0);
    while let CleanupStep::AwaitReply = cleanup.next_step(now) {
        cleanup.on_failure(FailureClass::Unreachable, now);
        if let CleanupStep::WaitUntil(next) = cleanup.next_step(now) {
            pauses.push(next.since(now).as_millis());
            now = next;
            cleanup.on_send();
        }
    }
    assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 500, 500, 500]);
    let reason = GiveUpReason::Expired;
    assert_eq!(cleanup.next_step(now), CleanupStep::GaveUp(reason));
}

#[test]
fn lock_that_may_have_no_expiry_is_released_also_after_its_lease() {
    let mut forever = request();
    forever.key = forever.key.in_dialect(Dialect::SetnxExpire);
    let mut cleanup = sent(forever);
    cleanup.on_failure(FailureClass::TimedOut, at(1_999));
    assert_eq!(cleanup.shutdown_waits(), ShutdownWaits::Yes);
    cleanup.on_failure(FailureClass::TimedOut, at(2_000));
    assert_eq!(cleanup.shutdown_waits(), ShutdownWaits::No);
    let step = cleanup.next_step(at(2_000));
    assert_eq!(step, CleanupStep::WaitUntil(at(2_020)));
}

#[test]
fn refusal_ends_a_release_unless_an_acquire_may_still_arrive() {
    let after = |request, class| {
        let mut cleanup = sent(request);
        cleanup.on_failure(class, at(1));
        cleanup.next_step(at(1))
    };
    let gave_up = CleanupStep::GaveUp;
    let again = CleanupStep::WaitUntil(at(11));
    for (class, of_guard, of_unconfirmed) in [
        (
            FailureClass::Forbidden,
            gave_up(GiveUpReason::Forbidden),
            again,
        ),
        (
            FailureClass::ForeignKey,
            gave_up(GiveUpReason::Refused),
            again,
        ),
        (
            FailureClass::MustNotRepeat,
            gave_up(GiveUpReason::Refused),
            gave_up(GiveUpReason::Refused),
        ),
        (FailureClass::Fatal, again, again),
        (FailureClass::OutOfMemory, again, again),
    ] {
        assert_eq!(after(request(), class), of_guard, "{class:?}");
        assert_eq!(after(unconfirmed(), class), of_unconfirmed, "{class:?}");
    }
    // A shutdown counts only the locks of guards.
    let waiter = ReleaseRequest {
        subject: ReleaseSubject::Acquire,
        ..request()
    };
    let step = after(waiter, FailureClass::Forbidden);
    assert_eq!(step, gave_up(GiveUpReason::Refused));
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Failed(FailureClass);

impl Failure for Failed {
    fn class(&self) -> FailureClass {
        self.0
    }
}

fn awaited(validity: Validity) -> AwaitedRelease<Failed> {
    let cleanup = Cleanup::new(request(), at(0), TIMEOUT);
    let mut release = AwaitedRelease::new(cleanup, at(500), validity);
    let step = release.on_start(at(0));
    assert!(matches!(step, AwaitedStep::Send { limit } if limit == TIMEOUT));
    release
}

#[test]
fn release_whose_reply_was_lost_counts_as_released_if_the_lock_was_valid() {
    for (validity, was_owner) in [(Validity::Valid, true), (Validity::Lost, false)] {
        let mut release = awaited(validity);
        let step = release.on_failure(Failed(FailureClass::Unreachable), at(5));
        assert!(matches!(step, AwaitedStep::WaitUntil(next) if next == at(15)));
        let step = release.on_timeout(at(15));
        assert!(matches!(step, AwaitedStep::Send { limit } if limit == at(500).since(at(15))));
        let AwaitedStep::Done(Ok(outcome)) = release.on_reply(outcome(0), at(16)) else {
            panic!("a reply ends the release");
        };
        assert_eq!(outcome.was_owner, was_owner);
        assert!(release.is_finished());
    }
    let AwaitedStep::Done(Ok(first)) = awaited(Validity::Valid).on_reply(outcome(0), at(1)) else {
        panic!("a reply ends the release");
    };
    assert!(!first.was_owner, "the only copy found another owner");
}

#[test]
fn timeout_of_a_later_copy_does_not_hide_an_earlier_failure() {
    let mut release = awaited(Validity::Valid);
    let cause = Failed(FailureClass::Retry);
    assert!(matches!(
        release.on_failure(cause, at(5)),
        AwaitedStep::WaitUntil(_)
    ));
    let timeout = Failed(FailureClass::TimedOut);
    let step = release.on_failure(timeout, at(500));
    assert!(matches!(step, AwaitedStep::Done(Err(failure)) if failure == cause));
    assert!(!release.is_finished(), "the background worker continues");
}

/// Only an unknown refusal says more than that the release may not be sent again.
#[test]
fn release_that_may_not_be_repeated_fails_with_the_servers_words() {
    let must_not_repeat = Failed(FailureClass::MustNotRepeat);
    for (first, error) in [
        (FailureClass::Unknown, Failed(FailureClass::Unknown)),
        (FailureClass::TimedOut, must_not_repeat),
    ] {
        let mut release = awaited(Validity::Valid);
        let step = release.on_failure(Failed(first), at(5));
        assert!(matches!(step, AwaitedStep::WaitUntil(_)));
        let step = release.on_failure(must_not_repeat, at(20));
        assert!(matches!(step, AwaitedStep::Done(Err(failure)) if failure == error));
    }
}

#[test]
fn caller_sends_no_copy_without_time_for_its_reply() {
    let mut release = awaited(Validity::Valid);
    let cause = Failed(FailureClass::Unreachable);
    let step = release.on_failure(cause, at(495));
    assert!(matches!(step, AwaitedStep::WaitUntil(next) if next == at(500)));
    let step = release.on_timeout(at(500));
    assert!(matches!(step, AwaitedStep::Done(Err(failure)) if failure == cause));
}

#[test]
fn waiter_that_leaves_sends_four_copies_at_most_within_its_time() {
    let cleanup = Cleanup::new(unconfirmed(), at(0), TIMEOUT);
    let mut cancel = AwaitedRelease::new(cleanup, at(150), Validity::Lost);
    let mut step = cancel.on_start(at(0));
    let (mut now, mut copies) = (at(0), 0);
    loop {
        step = match step {
            AwaitedStep::Send { .. } => {
                copies += 1;
                cancel.on_failure(Failed(FailureClass::Unreachable), now)
            }
            AwaitedStep::WaitUntil(next) => {
                now = next;
                cancel.on_timeout(now)
            }
            AwaitedStep::Done(result) => break assert!(result.is_err()),
        };
    }
    assert_eq!((copies, now), (4, at(150)));
}

#[test]
fn caller_learns_of_a_permanent_failure_at_once() {
    let cause = Failed(FailureClass::Forbidden);
    let step = awaited(Validity::Valid).on_failure(cause, at(1));
    assert!(matches!(step, AwaitedStep::Done(Err(failure)) if failure == cause));
}
