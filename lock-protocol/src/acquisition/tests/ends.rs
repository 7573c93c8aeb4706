//! The end of a wait: leaving the queue, and the error for the caller.

use super::*;

/// The end of the wait for a queued waiter.
#[track_caller]
fn ends(mut bench: Bench) -> Bench {
    assert_eq!(cancel_limit(bench.to(WAIT).timeout()), 150);
    bench
}

#[test]
fn wait_that_ends_leaves_the_queue_and_names_the_holder() {
    let mut bench = ends(Bench::queued());
    let action = bench.pass(20).cancelled(Some(not_owner(WAIT + 10)));
    let label = Some("other".to_owned());
    assert_eq!(timed_out(action), (WAIT + 20, label, Some(0)));
    assert!(matches!(bench.drop_it(), DropAction::Forget));
}

#[test]
fn shutdown_ends_the_wait_and_leaves_the_queue() {
    let mut bench = Bench::queued();
    let action = bench.to(100).notify(Notification::ShuttingDown);
    assert!(matches!(
        action,
        NextAction::Done(AcquireResult::Failed(AcquireFailure::ShuttingDown))
    ));
    assert_eq!(bench.cancel_on_drop().entries.len(), 1);
}

#[test]
fn waiter_whose_cancel_gets_no_reply_is_cancelled_in_the_background() {
    let mut bench = ends(Bench::queued());
    timed_out(bench.pass(150).cancelled(None));
    let request = bench.cancel_on_drop();
    assert_eq!(request.entries.len(), 1);
    assert_eq!(until_ms(&request), None);
}

#[test]
fn cancel_is_not_final_while_a_copy_of_the_acquire_may_arrive() {
    for (server_ms, is_final) in [(WAIT - 200, false), (WAIT - 100, false), (WAIT - 99, true)] {
        let mut bench = Bench::queued();
        // This copy may act until 100 ms before the end of the wait, and gets no reply.
        bench.to(WAIT - 600).notify(Notification::Poll);
        bench.to(WAIT - 100).fail(FailureClass::TimedOut);
        let mut bench = ends(bench);
        failed_with(
            bench.cancelled(Some(not_owner(server_ms))),
            FailureClass::TimedOut,
        );
        let is_forgotten = matches!(bench.drop_it(), DropAction::Forget);
        assert_eq!(is_forgotten, is_final, "{server_ms}");
    }
}

#[test]
fn cancel_that_left_dead_waiters_is_repeated_in_the_background() {
    let mut bench = ends(Bench::queued());
    let outcome = ReleaseOutcome {
        more: true,
        ..not_owner(WAIT)
    };
    timed_out(bench.cancelled(Some(outcome)));
    bench.cancel_on_drop();
}

#[test]
fn late_end_of_a_wait_has_less_time_to_leave_the_queue() {
    let mut bench = Bench::queued();
    assert_eq!(cancel_limit(bench.to(WAIT + 200).timeout()), 30);
    let mut bench = Bench::queued();
    timed_out(bench.to(WAIT + 230).timeout());
    bench.cancel_on_drop();
}

#[test]
fn waiter_that_the_server_does_not_know_needs_no_cancel() {
    let mut bench = Bench::waiter();
    bench.start();
    bench.reply(busy(Some(2_000)));
    let (waited, holder, rank) = timed_out(bench.to(WAIT).timeout());
    assert_eq!(
        (waited, holder.as_deref(), rank),
        (WAIT, Some("other"), None)
    );
    assert!(matches!(bench.drop_it(), DropAction::Forget));
}

#[test]
fn waiter_without_a_connection_leaves_the_cancel_to_the_background() {
    let mut bench = Bench::queued();
    bench.to(100).notify(Notification::Poll);
    bench.fail_with(FailureClass::Unreachable, Connectivity::Down);
    let action = bench.to(WAIT).reconnect(Err(FailureClass::Unreachable));
    failed_with(action, FailureClass::Unreachable);
    bench.cancel_on_drop();
}

#[test]
fn error_is_the_last_failure_unless_a_reply_followed() {
    let poll = |bench: &mut Bench, ms| bench.to(ms).notify(Notification::Poll);
    let mut bench = Bench::queued();
    poll(&mut bench, 100);
    bench.fail(FailureClass::Unreachable);
    poll(&mut bench, 200);
    bench.fail(FailureClass::Retry);
    let mut bench = ends(bench);
    failed_with(bench.cancelled(None), FailureClass::Retry);

    let mut bench = Bench::queued();
    poll(&mut bench, 100);
    bench.fail(FailureClass::Retry);
    poll(&mut bench, 200);
    bench.reply(queued(0, Some(5_000)));
    let mut bench = ends(bench);
    timed_out(bench.cancelled(None));
}

#[test]
fn unknown_refusal_is_repeated_and_is_the_error_of_the_wait() {
    let mut bench = Bench::queued();
    bench.to(100).notify(Notification::Poll);
    bench.fail(FailureClass::Unknown);
    bench.to(200).notify(Notification::Poll);
    bench.fail(FailureClass::Unknown);
    let mut bench = ends(bench);
    failed_with(bench.cancelled(None), FailureClass::Unknown);
}

#[test]
fn poll_that_the_end_of_the_wait_cut_short_does_not_hide_the_holder() {
    let mut bench = Bench::queued();
    bench.to(WAIT - 10).notify(Notification::Poll);
    bench.to(WAIT).fail(FailureClass::TimedOut);
    let mut bench = ends(bench);
    timed_out(bench.cancelled(None));

    // With its whole time, such a poll says that the server is down.
    let mut bench = Bench::queued();
    bench.to(WAIT - TIMEOUT).notify(Notification::Poll);
    bench.to(WAIT).fail(FailureClass::TimedOut);
    let mut bench = ends(bench);
    failed_with(bench.cancelled(None), FailureClass::TimedOut);

    // Without a holder, there is nothing else to report.
    let mut bench = Bench::waiter_for(10);
    bench.start();
    bench.to(50).fail(FailureClass::TimedOut);
    cancel_limit(bench.timeout());
    failed_with(bench.cancelled(None), FailureClass::TimedOut);
}

#[test]
fn timeout_does_not_hide_a_recent_failure_of_the_server() {
    for (pause, reported) in [(400, FailureClass::Retry), (500, FailureClass::TimedOut)] {
        let mut bench = Bench::queued();
        bench.notify(Notification::Poll);
        bench.fail(FailureClass::Retry);
        bench.pass(pause).notify(Notification::Poll);
        bench.pass(TIMEOUT).fail(FailureClass::TimedOut);
        let mut bench = ends(bench);
        failed_with(bench.cancelled(None), reported);
    }
}

#[test]
fn wait_that_ends_behind_dead_waiters_says_so() {
    let mut bench = Bench::queued();
    bench.to(WAIT - 10).notify(Notification::Poll);
    bench.to(WAIT).reply(AcquireReply::More);
    let mut bench = ends(bench);
    let action = bench.cancelled(None);
    let is_reported = matches!(
        action,
        NextAction::Done(AcquireResult::Failed(AcquireFailure::DeadWaiters))
    );
    assert!(is_reported, "{action:?}");
}

/// The key of a lock whose work is done, as a caller's acquire finds it.
fn done() -> AcquireReply {
    let value = OwnerValue {
        owner_id: OwnerId::done(),
        token: token(5),
        since_ms: server(0),
        label: "last".into(),
    };
    AcquireReply::Busy {
        holder: RawHolder {
            remaining_ms: Some(90_000),
            value: value.to_string(),
        },
    }
}

#[track_caller]
fn is_done(action: NextAction<FailedCommand>) {
    let NextAction::Done(AcquireResult::Failed(AcquireFailure::Done { holder })) = action else {
        panic!("{action:?}");
    };
    assert_eq!(
        (&*holder.label, holder.remaining),
        ("last", Some(ms(90_000)))
    );
}

#[test]
fn done_work_ends_an_attempt_and_a_wait_at_once() {
    for mut bench in [Bench::attempt(), Bench::waiter()] {
        bench.start();
        is_done(bench.reply(done()));
        assert!(matches!(bench.drop_it(), DropAction::Forget));
    }
}

#[test]
fn waiter_that_finds_the_work_done_leaves_nothing() {
    let mut bench = Bench::queued();
    bench.to(100).notify(Notification::Poll);
    is_done(bench.reply(done()));
    // The script has removed its entry.
    assert!(matches!(bench.drop_it(), DropAction::Forget));

    // A copy without a reply may still arrive.
    let mut bench = Bench::queued();
    bench.to(100).notify(Notification::Poll);
    bench.to(600).fail(FailureClass::TimedOut);
    bench.to(700).notify(Notification::Poll);
    is_done(bench.reply(done()));
    assert_eq!(bench.cancel_on_drop().entries.len(), 1);
}
