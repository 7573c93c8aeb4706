//! One attempt: its reply, its time, and the copies that it sends.

use super::*;

#[test]
fn attempt_counts_its_lease_from_the_send_time() {
    let mut bench = Bench::attempt();
    assert_eq!(acquire_limit(bench.start()), TIMEOUT);
    let (lease, request) = acquired(bench.pass(100).reply(held(TTL)));
    // Minus 1 % for the clocks, and 2 ms for rounding.
    assert_eq!(lease.deadline(), Some(at(TTL - 30 - 2)));
    assert_eq!(request.origin, None, "any connection will do");
    assert_eq!(until_ms(&request), None);
}

#[test]
fn attempt_on_a_busy_lock_names_the_holder() {
    let mut bench = Bench::attempt();
    bench.start();
    match bench.reply(busy(Some(1_000))) {
        NextAction::Done(AcquireResult::Contended { holder }) => {
            assert_eq!(&*holder.expect("a holder").label, "other");
        }
        other => panic!("not contended: {other:?}"),
    }
    assert!(matches!(bench.drop_it(), DropAction::Forget));
}

#[test]
fn attempt_is_resent_once_after_its_connection_broke() {
    let mut bench = Bench::attempt();
    bench.start();
    let resent = bench.pass(200).fail(FailureClass::Unreachable);
    assert_eq!(acquire_limit(resent), 300, "what is left of its time");
    let second = bench.fail(FailureClass::Unreachable);
    failed_with(second, FailureClass::Unreachable);
}

#[test]
fn attempt_is_not_resent_after_its_time() {
    let mut bench = Bench::attempt();
    bench.start();
    let action = bench.pass(TIMEOUT).fail(FailureClass::Unreachable);
    failed_with(action, FailureClass::Unreachable);
}

#[test]
fn attempt_is_resent_only_when_its_connection_broke() {
    let refusals = [
        FailureClass::TimedOut,
        FailureClass::OutOfMemory,
        FailureClass::Retry,
        FailureClass::Forbidden,
        FailureClass::Fatal,
    ];
    for class in refusals {
        let mut bench = Bench::attempt();
        bench.start();
        failed_with(bench.pass(10).fail(class), class);
    }
}

#[test]
fn late_copies_share_one_time_limit_and_are_sent_three_times() {
    for mut bench in [Bench::attempt(), Bench::waiter()] {
        bench.start();
        let second = bench.pass(100).reply(AcquireReply::Late);
        assert_eq!(acquire_limit(second), 400);
        let third = bench.pass(150).reply(AcquireReply::Late);
        assert_eq!(acquire_limit(third), 250);
        let failure = failed(bench.pass(10).reply(AcquireReply::Late));
        assert!(matches!(failure, AcquireFailure::ClockJumps), "{failure:?}");
    }
}

#[test]
fn late_copies_are_counted_anew_for_each_command() {
    let mut bench = Bench::waiter();
    bench.start();
    for _ in 0..5 {
        acquire_limit(bench.reply(AcquireReply::Late));
        acquire_limit(bench.reply(AcquireReply::Late));
        bench.reply(queued(0, Some(100)));
        acquire_limit(bench.pass(102).timeout());
    }
}

#[test]
fn attempt_behind_dead_waiters_is_repeated_until_its_time_ends() {
    let mut bench = Bench::attempt();
    bench.start();
    let again = bench.pass(100).reply(AcquireReply::More);
    assert_eq!(acquire_limit(again), 400);
    let failure = failed(bench.pass(400).reply(AcquireReply::More));
    assert!(matches!(failure, AcquireFailure::DeadWaiters));
}

#[test]
fn attempt_whose_grant_comes_after_the_lease_fails_and_is_cancelled() {
    let mut bench = Bench::attempt();
    bench.start();
    let failure = failed(bench.pass(TTL - 32).reply(held(TTL)));
    assert!(matches!(failure, AcquireFailure::LateGrant));
    let request = bench.cancel_on_drop();
    assert_eq!(request.owner_id, OwnerId::from_number(1));
}

#[test]
fn key_of_another_type_ends_an_attempt_and_a_wait() {
    for mut bench in [Bench::attempt(), Bench::waiter()] {
        bench.start();
        let found = "list".to_owned();
        match failed(bench.reply(AcquireReply::Foreign { found })) {
            AcquireFailure::ForeignType { found } => assert_eq!(found, "list"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn lock_that_lasts_as_long_as_its_guard_has_no_deadline() {
    let mut bench = Bench::new(|config| AcquireConfig {
        lease_kind: LeaseKind::Endless,
        ..config
    });
    bench.start();
    let (lease, _) = acquired(bench.pass(TTL).reply(held(TTL)));
    assert_eq!(lease.deadline(), None);
}
