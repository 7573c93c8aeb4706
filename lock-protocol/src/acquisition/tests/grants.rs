//! What makes a grant a lock.

use super::*;

fn notify(bench: &mut Bench, grant: Grant) -> NextAction<FailedCommand> {
    bench.notify(Notification::Grant(grant))
}

#[test]
fn certain_grant_is_a_lock_without_another_command() {
    let mut bench = Bench::queued();
    let grant = grant(100, Some(950));
    let (lease, request) = acquired(notify(bench.to(100), grant));
    assert_eq!(lease.deadline(), Some(at(950)));
    assert_eq!(request.entries.len(), 1, "the entry may be in the queue");
    assert_eq!(request.origin, None);
    let (observed, granted) = bench.peers.left[0];
    let holder_expires_at = observed.map(|observed| observed.holder_expires_at);
    assert_eq!(
        (holder_expires_at, granted),
        (Some(at(950)), Some(token(6)))
    );
}

#[test]
fn grant_with_less_than_half_of_its_lease_is_renewed_first() {
    let mut bench = Bench::queued();
    let grant = grant(100, Some(1_100));
    let action = notify(bench.to(601), grant);
    assert_eq!(renew_limit(action, RenewReason::Uncertain), TIMEOUT);
    // The lease counts from the time at which the renewal was sent.
    let (lease, _) = acquired(bench.to(900).renewed(Some(renewal(601))));
    assert_eq!(lease.deadline(), Some(at(601 + TTL - 32)));

    let mut bench = Bench::queued();
    acquired(notify(bench.to(600), grant));
}

/// The builder refuses a `max_hold` as short as this; the machine does not rely on it.
#[test]
fn grant_whose_longest_hold_has_ended_starts_over() {
    let mut bench = Bench::new(|config| AcquireConfig {
        lease_config: LeaseConfig {
            max_hold: Some(ms(100)),
            ..config.lease_config
        },
        patience: Patience::Wait {
            started: at(0),
            deadline: at(WAIT),
            max_queue: QueueLimit::NONE,
        },
        ..config
    });
    bench.start();
    bench.reply(queued(0, Some(2_000)));
    starts_over(&notify(bench.to(200), grant(100, Some(1_000))));
    bench.cancel_on_drop();
}

#[test]
fn grant_with_an_uncertain_end_is_renewed_first() {
    let mut bench = Bench::queued();
    let action = notify(bench.to(100), grant(100, None));
    assert_eq!(renew_limit(action, RenewReason::Uncertain), TIMEOUT);
}

#[test]
fn grant_that_the_server_cannot_have_written_is_renewed_first() {
    let too_long = Grant {
        lease: ms(HANDOVER_MS + 1),
        ..grant(100, Some(1_100))
    };
    let mut bench = Bench::queued();
    renew_limit(notify(bench.to(100), too_long), RenewReason::Implausible);

    let mut bench = Bench::queued();
    bench.peers.last_token = Some(token(7));
    let too_old = grant(100, Some(1_100));
    renew_limit(notify(bench.to(100), too_old), RenewReason::Implausible);

    let mut bench = Bench::queued();
    bench.peers.last_token = Some(token(6));
    acquired(notify(bench.to(100), too_old));
}

#[test]
fn refused_confirmation_polls_at_once_and_keeps_the_entry() {
    for outcome in [Some(RenewOutcome::NotOwner(LossReason::Removed)), None] {
        let mut bench = Bench::queued();
        notify(bench.to(100), grant(100, None));
        // Whatever else has arrived: a flood of forged grants must not replace the polls.
        let poll = bench.pass(20).renewed(outcome);
        assert_eq!(acquire_limit(poll), TIMEOUT);
        assert_eq!(bench.acquisition.sent().earlier().len(), 0);
        assert!(bench.acquisition.sent().entry().is_some());
    }
}

#[test]
fn refused_confirmation_at_the_end_of_the_wait_ends_it() {
    let mut bench = Bench::queued();
    notify(bench.to(WAIT - 10), grant(WAIT - 10, None));
    let action = bench
        .to(WAIT)
        .renewed(Some(RenewOutcome::NotOwner(LossReason::Removed)));
    assert_eq!(cancel_limit(action), 150);
}

#[test]
fn grant_after_a_refused_confirmation_is_confirmed_too() {
    let mut bench = Bench::queued();
    notify(bench.to(100), grant(100, None));
    bench.renewed(Some(RenewOutcome::NotOwner(LossReason::Removed)));
    bench.reply(queued(0, Some(2_000)));
    let certain = grant(200, Some(1_200));
    renew_limit(notify(bench.to(200), certain), RenewReason::Uncertain);
}

#[test]
fn grant_after_a_lost_subscription_is_confirmed() {
    let mut bench = Bench::queued();
    bench.to(100).notify(Notification::Poll);
    bench.reply(queued(0, Some(2_000)));
    let certain = grant(200, Some(1_200));
    renew_limit(notify(bench.to(200), certain), RenewReason::Uncertain);
}

#[test]
fn grant_that_is_found_after_its_lease_starts_over_under_a_new_owner_id() {
    let mut bench = Bench::queued();
    bench.to(100).notify(Notification::Poll);
    // The reply comes when only the margin is left.
    starts_over(&bench.to(580).reply(held(485)));
    assert_eq!(bench.cancel_on_drop().owner_id, OwnerId::from_number(1));
    assert_eq!(bench.peers.left, [(None, None)]);
    assert_eq!(acquire_limit(bench.start_over(2)), TIMEOUT);
    let sent = bench.acquisition.sent();
    assert_eq!(sent.owner_id, OwnerId::from_number(2));
    assert_eq!(sent.entry().unwrap().owner_id, OwnerId::from_number(2));
    // No client but this one knows the new owner id.
    bench.reply(queued(0, Some(2_000)));
    acquired(notify(bench.to(600), grant(600, Some(1_500))));
}

#[test]
fn confirmation_that_comes_after_the_lease_starts_over() {
    let mut bench = Bench::queued();
    notify(bench.to(100), grant(100, None));
    starts_over(&bench.to(100 + TTL - 32).renewed(Some(renewal(100))));
    bench.cancel_on_drop();
    // The wait is over, and nothing was sent under the new owner id.
    timed_out(bench.start_over(2));
    assert!(matches!(bench.drop_it(), DropAction::Forget));
}

#[test]
fn start_over_without_a_connection_waits_for_it() {
    let mut bench = Bench::queued();
    bench.to(100).notify(Notification::Poll);
    bench.fail_with(FailureClass::Unreachable, Connectivity::Down);
    notify(&mut bench, grant(100, None));
    let mut late = renewal(100);
    if let RenewOutcome::Held { remaining, .. } = &mut late {
        *remaining = ms(10);
    }
    starts_over(&bench.to(200).renewed(Some(late)));
    bench.cancel_on_drop();
    reconnects_until(bench.start_over(2), WAIT);
}

#[test]
fn handover_of_a_lock_that_lasts_as_long_as_its_guard_has_no_deadline() {
    let mut bench = Bench::new(|config| AcquireConfig {
        lease_kind: LeaseKind::Endless,
        patience: Patience::Wait {
            started: at(0),
            deadline: at(WAIT),
            max_queue: QueueLimit::NONE,
        },
        ..config
    });
    bench.start();
    bench.reply(queued(0, Some(1_000)));
    let (lease, _) = acquired(notify(bench.to(100), grant(100, None)));
    assert_eq!(lease.deadline(), None);
}
