//! A key without an expiry: a lock that is about to get one, or not a lock.

use super::*;

#[track_caller]
fn has_no_expiry(action: NextAction<FailedCommand>) {
    match failed(action) {
        AcquireFailure::NoExpiry { value } => assert_eq!(&*value, "other"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn attempt_polls_a_key_without_an_expiry_for_200_ms() {
    let mut bench = Bench::attempt();
    bench.start();
    for poll in 1..=4 {
        waits_until(bench.reply(busy(None)), poll * 50);
        let again = bench.to(poll * 50).timeout();
        assert_eq!(acquire_limit(again), 230 - poll * 50);
    }
    has_no_expiry(bench.reply(busy(None)));
}

#[test]
fn attempt_on_a_key_that_gets_its_expiry_is_contended() {
    let mut bench = Bench::attempt();
    bench.start();
    bench.reply(busy(None));
    bench.pass(50).timeout();
    let action = bench.reply(busy(Some(1_000)));
    let is_contended = matches!(action, NextAction::Done(AcquireResult::Contended { .. }));
    assert!(is_contended, "{action:?}");
}

#[test]
fn attempt_with_a_short_command_timeout_still_finds_out_the_expiry() {
    let mut bench = Bench::new(|config| AcquireConfig {
        patience: Patience::OneAttempt {
            started: at(0),
            until: at(100),
        },
        command_timeout: ms(100),
        ..config
    });
    assert_eq!(acquire_limit(bench.start()), 100);
    bench.pass(90).reply(busy(None));
    // The attempt began 230 ms before.
    assert_eq!(acquire_limit(bench.to(140).timeout()), 90);
    bench.reply(busy(None));
    assert_eq!(acquire_limit(bench.to(190).timeout()), 40);
    has_no_expiry(bench.to(230).fail(FailureClass::TimedOut));
}

#[test]
fn failure_other_than_a_timeout_replaces_the_missing_expiry() {
    let mut bench = Bench::attempt();
    bench.start();
    bench.reply(busy(None));
    bench.pass(50).timeout();
    failed_with(bench.fail(FailureClass::Fatal), FailureClass::Fatal);
}

#[test]
fn waiter_polls_a_key_without_an_expiry_for_200_ms() {
    let mut bench = Bench::waiter();
    bench.start();
    for poll in 1..=4 {
        waits_until(bench.reply(queued(0, None)), poll * 50);
        acquire_limit(bench.to(poll * 50).timeout());
    }
    has_no_expiry(bench.reply(queued(0, None)));
}

#[test]
fn short_wait_goes_on_until_the_expiry_is_known() {
    let mut bench = Bench::waiter_for(30);
    bench.start();
    waits_until(bench.pass(10).reply(queued(0, None)), 60);
    // 230 ms after the first such reply.
    assert_eq!(acquire_limit(bench.to(60).timeout()), 180);
    waits_until(bench.fail(FailureClass::Retry), 70);
    has_no_expiry(bench.to(240).timeout());
}

#[test]
fn search_for_an_expiry_ends_230_ms_after_the_wait() {
    let mut bench = Bench::waiter_for(10);
    bench.start();
    bench.to(45).reply(queued(0, None));
    assert_eq!(acquire_limit(bench.to(95).timeout()), 145, "until 240");
    waits_until(bench.to(235).fail(FailureClass::Retry), 240);
    has_no_expiry(bench.to(240).timeout());
}
