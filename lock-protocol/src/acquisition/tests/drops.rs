//! What remains to be done when an acquisition is dropped, by its phase.

use super::*;

fn is_forgotten(mut bench: Bench) -> bool {
    matches!(bench.drop_it(), DropAction::Forget)
}

#[test]
fn acquisition_that_sent_nothing_is_forgotten() {
    assert!(is_forgotten(Bench::attempt()));
    assert!(is_forgotten(Bench::waiter()));
}

#[test]
fn acquire_without_a_reply_is_cancelled_behind_it() {
    let mut bench = Bench::waiter();
    bench.start();
    let request = bench.pass(10).cancel_on_drop();
    assert_eq!(request.origin, Some(ORIGIN));
    assert_eq!(until_ms(&request), Some(server(TIMEOUT)));
    assert_eq!(request.entries.len(), 1);
    assert_eq!(bench.peers.left, [(None, None)]);
}

#[test]
fn queued_waiter_is_cancelled() {
    let request = Bench::queued().cancel_on_drop();
    assert_eq!(until_ms(&request), None);
    assert_eq!(request.entries.len(), 1);
}

#[test]
fn busy_attempt_leaves_nothing_to_cancel() {
    let mut bench = Bench::attempt();
    bench.start();
    bench.reply(busy(None));
    assert!(is_forgotten(bench));
}

#[test]
fn reply_to_one_copy_does_not_confirm_an_earlier_one() {
    let mut bench = Bench::attempt();
    bench.start();
    bench.pass(20).fail(FailureClass::Unreachable);
    bench.pass(20).reply(busy(Some(1_000)));
    let request = bench.cancel_on_drop();
    // The first copy was sent at the start.
    assert_eq!(until_ms(&request), Some(server(TIMEOUT)));
}

#[test]
fn last_of_several_unconfirmed_copies_counts() {
    let mut bench = Bench::attempt();
    bench.start();
    bench.pass(20).fail(FailureClass::Unreachable);
    let request = bench.cancel_on_drop();
    assert_eq!(until_ms(&request), Some(server(20 + TIMEOUT)));
}

#[test]
fn poll_in_flight_is_unconfirmed_until_its_own_time() {
    let mut bench = Bench::queued();
    bench.to(300).notify(Notification::Poll);
    let request = bench.cancel_on_drop();
    assert_eq!(until_ms(&request), Some(server(300 + TIMEOUT)));
}

#[test]
fn refused_acquire_leaves_no_entry_behind() {
    let mut bench = Bench::waiter();
    bench.start();
    bench.fail(FailureClass::Retry);
    assert_eq!(bench.cancel_on_drop().entries, []);
}

#[test]
fn renewal_that_confirms_a_grant_is_followed_by_a_cancel() {
    let mut bench = Bench::queued();
    bench.notify(Notification::Grant(grant(0, None)));
    bench.cancel_on_drop();
}

#[test]
fn acquired_lock_is_left_to_its_guard() {
    let mut bench = Bench::waiter();
    bench.start();
    let (_, request) = acquired(bench.reply(held(TTL)));
    assert_eq!(request.entries, [], "it was never queued");
    assert!(matches!(bench.drop_it(), DropAction::LeaveToGuard));

    // It may be queued by another copy when a later command gets the lock.
    let mut bench = Bench::waiter();
    bench.start();
    bench.fail(FailureClass::TimedOut);
    bench.pass(10).timeout();
    let (_, request) = acquired(bench.reply(held(TTL)));
    assert_eq!(request.entries.len(), 1);
    assert_eq!(until_ms(&request), Some(server(TIMEOUT)));
}
