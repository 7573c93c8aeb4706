//! When a waiter polls, and what it does when a poll fails.

use super::*;

#[test]
fn first_command_of_a_short_wait_has_50_ms() {
    assert_eq!(acquire_limit(Bench::waiter_for(0).start()), 50);
    assert_eq!(acquire_limit(Bench::waiter_for(200).start()), 200);
    assert_eq!(acquire_limit(Bench::waiter().start()), TIMEOUT);
    let mut hasty = Bench::new(|config| AcquireConfig {
        patience: Patience::Wait {
            started: at(0),
            deadline: at(0),
            max_queue: QueueLimit::NONE,
        },
        command_timeout: ms(20),
        ..config
    });
    assert_eq!(acquire_limit(hasty.start()), 20);
}

#[test]
fn later_command_ends_with_the_wait() {
    let mut bench = Bench::queued();
    let poll = bench.to(WAIT - 10).notify(Notification::Poll);
    assert_eq!(acquire_limit(poll), 10);
}

#[test]
fn first_waiter_polls_at_the_expiry_of_the_holder() {
    let mut bench = Bench::waiter();
    bench.start();
    waits_until(bench.pass(10).reply(queued(0, Some(300))), 312);
    waits_until(bench.to(311).timeout(), 312);
    assert_eq!(acquire_limit(bench.to(312).timeout()), TIMEOUT);
    let (observed, token_of_holder) = bench.peers.entered[0];
    let holder_expires_at = observed.map(|observed| observed.holder_expires_at);
    assert_eq!(holder_expires_at, Some(at(310)));
    assert_eq!(token_of_holder, Some(token(5)));
}

/// The last reply may be a second old at the end of the wait.
#[test]
fn holder_of_a_timeout_is_as_old_as_the_error() {
    let mut bench = Bench::waiter();
    bench.start();
    bench.to(WAIT - 700).reply(queued(0, Some(90_000)));
    bench.to(WAIT).timeout();
    let NextAction::Done(AcquireResult::TimedOut { holder, .. }) = bench.cancelled(None) else {
        panic!("the wait has ended");
    };
    let holder = holder.expect("the lock has a holder");
    assert_eq!(holder.held_for, Some(ms(WAIT)));
    assert_eq!(holder.remaining, Some(ms(89_300)));
}

fn with_max_queue(most: u32) -> Bench {
    Bench::new(|config| AcquireConfig {
        patience: Patience::Wait {
            started: at(0),
            deadline: at(WAIT),
            max_queue: QueueLimit::new(most),
        },
        ..config
    })
}

#[test]
fn refused_caller_ends_at_once_and_has_nothing_to_cancel() {
    let mut bench = with_max_queue(2);
    bench.start();
    let AcquireReply::Queued { holder, .. } = queued(0, Some(300)) else {
        unreachable!();
    };
    let next = bench.pass(10).reply(AcquireReply::Full { rank: 2, holder });
    let NextAction::Done(AcquireResult::QueueFull { holder, rank: 2 }) = next else {
        panic!("{next:?}");
    };
    assert_eq!(holder.expect("the lock has a holder").token, Some(token(5)));
    assert!(matches!(bench.drop_it(), DropAction::Forget));
}

/// A copy without a reply may still arrive, and enter the queue.
#[test]
fn refused_caller_cancels_a_copy_that_got_no_reply() {
    let mut bench = with_max_queue(2);
    bench.start();
    waits_until(bench.pass(10).fail(FailureClass::Unreachable), 20);
    acquire_limit(bench.to(20).timeout());
    let holder = RawHolder {
        remaining_ms: Some(300),
        value: String::new(),
    };
    let next = bench.pass(10).reply(AcquireReply::Full { rank: 2, holder });
    assert!(matches!(
        next,
        NextAction::Done(AcquireResult::QueueFull { .. })
    ));
    assert!(matches!(bench.drop_it(), DropAction::Cancel(_)));
}

#[test]
fn only_a_newcomer_has_a_limit() {
    let mut bench = with_max_queue(2);
    bench.start();
    assert_eq!(bench.acquisition.sent().max_queue.get(), Some(2));
    bench.pass(10).reply(queued(1, Some(300)));
    assert_eq!(bench.acquisition.sent().max_queue.get(), None);
}

#[test]
fn waiter_behind_another_of_its_manager_polls_later() {
    let mut bench = Bench::waiter();
    bench.peers.is_behind = true;
    bench.start();
    waits_until(bench.reply(queued(1, Some(300))), 1_000);
    bench.peers.last_observed = Some(ObservedExpiry {
        at: at(50),
        holder_expires_at: at(400),
    });
    // The first waiter left, and had seen another end of the lease.
    waits_until(bench.to(100).notify(Notification::First), 412);
}

#[test]
fn head_notification_brings_the_next_poll_forward() {
    let mut bench = Bench::queued();
    let holder_expires_at = at(120);
    let head = Notification::Head { holder_expires_at };
    waits_until(bench.to(100).notify(head), 122);
}

#[test]
fn poll_notification_polls_at_once() {
    let mut bench = Bench::queued();
    let poll = bench.to(100).notify(Notification::Poll);
    assert_eq!(acquire_limit(poll), TIMEOUT);
}

#[test]
fn announced_release_polls_at_once() {
    let mut bench = Bench::waiter();
    bench.start();
    waits_until(bench.pass(10).busy_until_announced(60_000), 1_010);
    let (observed, _) = bench.peers.entered[0];
    let holder_expires_at = observed.map(|observed| observed.holder_expires_at);
    assert_eq!(holder_expires_at, Some(at(60_000)), "for the others");
    assert_eq!(
        acquire_limit(bench.to(100).notify(Notification::Released)),
        TIMEOUT
    );
    waits_until(bench.pass(10).busy_until_announced(300), 302);
    // It has nothing on the server to cancel.
    assert!(matches!(bench.drop_it(), DropAction::Forget));
}

/// As soon as there is a connection, it polls anyway.
#[test]
fn announced_release_waits_for_a_connection() {
    let mut bench = Bench::waiter();
    bench.start();
    bench.fail_with(FailureClass::Unreachable, Connectivity::Down);
    let waits = bench.notify(Notification::Released);
    assert!(
        matches!(waits, NextAction::Perform(Action::Reconnect { .. })),
        "{waits:?}"
    );
}

#[test]
fn waiter_behind_dead_waiters_polls_again_at_once_for_the_time_of_a_call() {
    let mut bench = Bench::waiter();
    bench.start();
    for at in [100, 100 + TIMEOUT - 1] {
        let again = bench.to(at).reply(AcquireReply::More);
        assert_eq!(acquire_limit(again), TIMEOUT);
    }
    let mut now = 100 + TIMEOUT;
    for pause in [10, 20, 40] {
        waits_until(bench.to(now).reply(AcquireReply::More), now + pause);
        now += pause;
        assert_eq!(acquire_limit(bench.to(now).timeout()), TIMEOUT);
    }
    // A reply about a holder is progress.
    bench.reply(queued(0, Some(1)));
    now += 100;
    bench.to(now).notify(Notification::Poll);
    let again = bench.reply(AcquireReply::More);
    assert_eq!(acquire_limit(again), TIMEOUT);
    // Without time for another poll it waits for the end.
    waits_until(bench.to(WAIT).reply(AcquireReply::More), WAIT);
    cancel_limit(bench.timeout());
}

#[test]
fn failed_poll_is_repeated_after_growing_pauses() {
    let mut bench = Bench::queued();
    bench.to(100).notify(Notification::Poll);
    let classes = [
        FailureClass::Unreachable,
        FailureClass::TimedOut,
        FailureClass::Retry,
    ];
    let (mut now, mut pause) = (100, 10);
    for class in classes {
        waits_until(bench.fail(class), now + pause);
        now += pause;
        pause *= 2;
        acquire_limit(bench.to(now).timeout());
    }
    // A reply ends the series.
    bench.reply(queued(0, Some(2_000)));
    bench.notify(Notification::Poll);
    waits_until(bench.fail(FailureClass::Retry), now + 10);
}

#[test]
fn permanent_failure_ends_the_wait() {
    for class in [
        FailureClass::Forbidden,
        FailureClass::ForeignKey,
        FailureClass::MustNotRepeat,
        FailureClass::Fatal,
    ] {
        let mut bench = Bench::queued();
        bench.notify(Notification::Poll);
        failed_with(bench.fail(class), class);
    }
}

#[test]
fn waiter_without_a_connection_polls_once_it_is_back() {
    let mut bench = Bench::queued();
    bench.to(100).notify(Notification::Poll);
    let action = bench.fail_with(FailureClass::Unreachable, Connectivity::Down);
    reconnects_until(action, WAIT);
    // Nothing makes it poll meanwhile.
    reconnects_until(bench.to(200).notify(Notification::Poll), WAIT);
    reconnects_until(
        bench.to(250).reconnect(Err(FailureClass::Unreachable)),
        WAIT,
    );
    assert_eq!(acquire_limit(bench.to(300).reconnect(Ok(()))), TIMEOUT);
}

#[test]
fn connection_that_is_back_at_once_does_not_shorten_the_pause() {
    let mut bench = Bench::queued();
    bench.to(100).notify(Notification::Poll);
    bench.fail_with(FailureClass::Unreachable, Connectivity::Down);
    waits_until(bench.to(101).reconnect(Ok(())), 110);
}

#[test]
fn permanent_failure_to_connect_ends_the_wait() {
    let mut bench = Bench::queued();
    bench.to(100).notify(Notification::Poll);
    bench.fail_with(FailureClass::Unreachable, Connectivity::Down);
    let action = bench.reconnect(Err(FailureClass::Fatal));
    failed_with(action, FailureClass::Fatal);
}

#[test]
fn waiter_without_a_connection_still_gets_a_grant() {
    let mut bench = Bench::queued();
    bench.to(100).notify(Notification::Poll);
    bench.fail_with(FailureClass::Unreachable, Connectivity::Down);
    let grant = grant(200, None);
    let action = bench.to(200).notify(Notification::Grant(grant));
    assert_eq!(renew_limit(action, RenewReason::Uncertain), TIMEOUT);
}

#[test]
fn server_without_memory_is_probed_by_a_renewal() {
    let mut bench = Bench::queued();
    bench.to(100).notify(Notification::Poll);
    let probe = bench.fail(FailureClass::OutOfMemory);
    assert_eq!(renew_limit(probe, RenewReason::OutOfMemory), TIMEOUT);
    waits_until(
        bench
            .to(130)
            .renewed(Some(RenewOutcome::NotOwner(LossReason::Removed))),
        140,
    );
    acquire_limit(bench.to(140).timeout());
    bench.fail(FailureClass::OutOfMemory);
    let (lease, _) = acquired(bench.to(160).renewed(Some(renewal(150))));
    assert_eq!(lease.deadline(), Some(at(150 + TTL - 32)));
}

#[test]
fn refused_first_acquire_is_not_probed() {
    let mut bench = Bench::waiter();
    bench.start();
    // The server has no entry of this owner id, so no handover can have given it the lock.
    waits_until(bench.fail(FailureClass::OutOfMemory), 10);
}
