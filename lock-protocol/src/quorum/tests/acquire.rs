use super::*;

fn attempt(servers: usize) -> QuorumAcquire {
    QuorumAcquire::new(servers, ttl(), at(1000), (0..servers).collect())
}

/// An attempt whose first server gave the key, and that has asked all others.
fn past_the_gate(servers: usize, first: u64) -> QuorumAcquire {
    let mut attempt = attempt(servers);
    attempt.held(0, confirmed(first, 1000), at(1010));
    let others = (1..servers).map(QuorumAction::Acquire);
    let expected: Vec<_> = std::iter::once(QuorumAction::Acquire(0))
        .chain(others)
        .collect();
    assert_eq!(commands(&mut attempt), expected);
    attempt
}

fn commands(attempt: &mut QuorumAcquire) -> Vec<QuorumAction> {
    let mut actions = attempt.actions();
    actions.retain(|action| !matches!(action, QuorumAction::Wait { .. }));
    actions
}

/// The reply of a server whose holder this caller has seen before.
fn stale(remaining: Option<Duration>) -> BusyServer {
    BusyServer {
        remaining,
        may_be_stale: true,
    }
}

fn no_quorum(granted: usize, needed: usize, servers: usize) -> QuorumOutcome {
    QuorumOutcome::NoQuorum {
        granted,
        needed,
        servers,
    }
}

#[test]
fn attempt_asks_only_the_gate_first() {
    let mut attempt = attempt(5);
    let wait = QuorumAction::Wait { until: at(1100) };
    assert_eq!(attempt.actions(), [QuorumAction::Acquire(0), wait]);
    assert_eq!(attempt.actions(), [wait]);
}

#[test]
fn new_holder_at_the_gate_ends_the_attempt_without_a_cancel() {
    let mut attempt = attempt(5);
    let _ = attempt.actions();
    let new = BusyServer {
        may_be_stale: false,
        ..stale(Some(ms(300)))
    };
    attempt.busy(0, new, at(1005));
    let remaining = Some(ms(300));
    assert_eq!(
        attempt.outcome(),
        Some(&QuorumOutcome::Contended { remaining })
    );
    assert_eq!(attempt.actions(), []);
}

/// One server may keep the key of a holder that has released it at the others.
#[test]
fn busy_gate_is_followed_by_the_next_until_no_majority_is_left() {
    let mut attempt = attempt(5);
    let _ = attempt.actions();
    attempt.busy(0, stale(Some(ms(300))), at(1005));
    let wait = QuorumAction::Wait { until: at(1105) };
    assert_eq!(attempt.actions(), [QuorumAction::Acquire(1), wait]);
    attempt.busy(1, stale(Some(ms(100))), at(1010));
    assert_eq!(commands(&mut attempt), [QuorumAction::Acquire(2)]);
    attempt.busy(2, stale(Some(ms(200))), at(1015));
    let remaining = Some(ms(100));
    assert_eq!(
        attempt.outcome(),
        Some(&QuorumOutcome::Contended { remaining })
    );
    assert_eq!(attempt.actions(), [], "there is nothing to cancel");
}

#[test]
fn stale_key_at_the_gate_does_not_prevent_a_grant() {
    let mut attempt = attempt(3);
    attempt.busy(0, stale(None), at(1005));
    attempt.held(1, confirmed(7, 1005), at(1010));
    attempt.held(2, confirmed(9, 1010), at(1015));
    let _ = attempt.actions();
    attempt.raised(1, confirmed(9, 1015), at(1020));
    attempt.raised(2, confirmed(9, 1015), at(1020));
    assert!(matches!(
        attempt.outcome(),
        Some(QuorumOutcome::Granted { servers, .. }) if *servers == [1, 2]
    ));
}

#[test]
fn silent_or_failed_gate_is_replaced_by_the_next() {
    let mut attempt = QuorumAcquire::new(5, ttl(), at(1000), vec![3, 1, 0, 2, 4]);
    assert_eq!(commands(&mut attempt), [QuorumAction::Acquire(3)]);
    attempt.tick(at(1099));
    assert_eq!(commands(&mut attempt), []);
    attempt.tick(at(1100));
    assert_eq!(commands(&mut attempt), [QuorumAction::Acquire(1)]);
    // The failure of an earlier gate is not that of the present one.
    attempt.failed(3, at(1110));
    assert_eq!(commands(&mut attempt), []);
    attempt.failed(1, at(1120));
    let wait = QuorumAction::Wait { until: at(1220) };
    assert_eq!(attempt.actions(), [QuorumAction::Acquire(0), wait]);
    // A late reply of an earlier gate counts.
    attempt.held(3, confirmed(7, 1000), at(1130));
    let rest = [2, 4].map(QuorumAction::Acquire);
    assert_eq!(commands(&mut attempt), rest);
    attempt.busy(0, stale(Some(ms(400))), at(1140));
    attempt.held(2, confirmed(5, 1130), at(1140));
    attempt.failed(4, at(1150));
    let remaining = Some(ms(400));
    assert_eq!(
        attempt.outcome(),
        Some(&QuorumOutcome::Contended { remaining })
    );
    assert_eq!(attempt.actions(), [QuorumAction::CancelAll]);
}

#[test]
fn gates_that_all_fail_end_in_no_quorum() {
    let mut attempt = attempt(3);
    attempt.failed(0, at(1001));
    assert_eq!(attempt.outcome(), None);
    attempt.failed(1, at(1002));
    assert_eq!(attempt.outcome(), Some(&no_quorum(0, 2, 3)));
    assert_eq!(attempt.actions(), [QuorumAction::CancelAll]);
}

#[test]
fn silent_gates_become_an_attempt_at_all_servers() {
    let mut attempt = attempt(3);
    for now in [1100, 1200, 1300] {
        attempt.tick(at(now));
    }
    assert_eq!(attempt.outcome(), None);
    attempt.tick(at(1799));
    assert_eq!(attempt.outcome(), None);
    attempt.tick(at(1800));
    assert_eq!(attempt.outcome(), Some(&no_quorum(0, 2, 3)));
}

#[test]
fn majority_is_granted_the_highest_token_after_both_rounds() {
    let mut attempt = past_the_gate(5, 7);
    attempt.held(2, confirmed(40, 1010), at(1020));
    attempt.held(4, confirmed(9, 1010), at(1030));
    let raises = [0, 2, 4].map(|server| QuorumAction::Raise(server, token(40)));
    assert_eq!(commands(&mut attempt), raises);
    attempt.raised(0, confirmed(40, 1030), at(1040));
    attempt.raised(2, confirmed(40, 1035), at(1041));
    assert_eq!(attempt.outcome(), None);
    attempt.raised(4, confirmed(40, 1038), at(1042));
    let granted = QuorumOutcome::Granted {
        token: Some(token(40)),
        ends_at: at(1030 + 1000 - 12),
        servers: vec![0, 2, 4],
    };
    assert_eq!(attempt.outcome(), Some(&granted));
    assert_eq!(attempt.actions(), []);
    let lease = attempt.lease().unwrap();
    assert_eq!(lease.ends_at(), Some(at(2018)));
}

#[test]
fn late_token_that_is_not_higher_joins_the_second_round() {
    let mut attempt = past_the_gate(3, 7);
    attempt.held(1, confirmed(5, 1010), at(1020));
    let _ = attempt.actions();
    attempt.held(2, confirmed(7, 1010), at(1030));
    let raise = QuorumAction::Raise(2, token(7));
    assert_eq!(commands(&mut attempt), [raise]);
    attempt.raised(2, confirmed(7, 1030), at(1040));
    attempt.raised(1, confirmed(7, 1020), at(1045));
    assert!(matches!(
        attempt.outcome(),
        Some(QuorumOutcome::Granted { servers, .. }) if *servers == [1, 2]
    ));
}

#[test]
fn late_higher_token_is_written_to_all_again() {
    let mut attempt = past_the_gate(3, 7);
    attempt.held(1, confirmed(5, 1010), at(1020));
    attempt.raised(0, confirmed(7, 1020), at(1025));
    let _ = attempt.actions();
    attempt.held(2, confirmed(8, 1010), at(1030));
    let raises = [0, 1, 2].map(|server| QuorumAction::Raise(server, token(8)));
    assert_eq!(commands(&mut attempt), raises);
    // Confirmations of the lower token do not count.
    attempt.raised(1, confirmed(7, 1020), at(1035));
    assert_eq!(attempt.outcome(), None);
    attempt.raised(1, confirmed(8, 1030), at(1040));
    assert_eq!(attempt.outcome(), None);
    attempt.raised(0, confirmed(8, 1030), at(1041));
    assert!(matches!(
        attempt.outcome(),
        Some(QuorumOutcome::Granted { token: granted, .. }) if *granted == Some(token(8))
    ));
}

#[test]
fn servers_that_lose_the_key_between_the_rounds_prevent_a_grant() {
    let mut attempt = past_the_gate(3, 7);
    attempt.held(1, confirmed(5, 1010), at(1020));
    attempt.busy(2, stale(Some(ms(900))), at(1021));
    attempt.not_ours(1, at(1030));
    let remaining = Some(ms(900));
    assert_eq!(
        attempt.outcome(),
        Some(&QuorumOutcome::Contended { remaining })
    );
    assert_eq!(attempt.actions(), [QuorumAction::CancelAll]);
}

#[test]
fn contended_attempt_waits_for_the_server_that_completes_a_majority() {
    let mut attempt = past_the_gate(5, 7);
    attempt.busy(1, stale(Some(ms(900))), at(1020));
    attempt.busy(2, stale(None), at(1020));
    attempt.busy(3, stale(Some(ms(200))), at(1020));
    let remaining = Some(ms(200));
    assert_eq!(
        attempt.outcome(),
        Some(&QuorumOutcome::Contended { remaining })
    );
}

#[test]
fn grant_with_less_than_half_the_ttl_left_is_cancelled() {
    let mut attempt = past_the_gate(3, 7);
    attempt.held(1, confirmed(5, 1010), at(1020));
    let short = ServerLease {
        remaining: ms(600),
        ..confirmed(7, 1020)
    };
    attempt.raised(0, short, at(1130));
    attempt.raised(1, short, at(1130));
    assert_eq!(attempt.outcome(), Some(&QuorumOutcome::TooLate));
    assert_eq!(attempt.actions(), [QuorumAction::CancelAll]);
    assert!(attempt.lease().is_none());
}

#[test]
fn attempt_at_half_the_ttl_gives_up() {
    let mut attempt = past_the_gate(5, 7);
    attempt.held(1, confirmed(5, 1010), at(1020));
    assert!(matches!(
        attempt.actions()[..],
        [QuorumAction::Wait { until }] if until == at(1510)
    ));
    attempt.tick(at(1510));
    assert_eq!(attempt.outcome(), Some(&no_quorum(2, 3, 5)));
    // A reply after the end changes nothing.
    attempt.held(2, confirmed(5, 1010), at(1520));
    assert_eq!(attempt.outcome(), Some(&no_quorum(2, 3, 5)));
}

#[test]
fn servers_in_quarantine_are_not_asked_and_not_counted() {
    let mut attempt = QuorumAcquire::new(5, ttl(), at(0), vec![1, 2]);
    assert_eq!(attempt.outcome(), Some(&no_quorum(0, 3, 5)));
    assert_eq!(attempt.actions(), []);
    let mut attempt = QuorumAcquire::new(3, ttl(), at(0), vec![1, 2]);
    attempt.held(1, confirmed(3, 0), at(1));
    let asked = [1, 2].map(QuorumAction::Acquire);
    assert_eq!(commands(&mut attempt), asked);
    attempt.held(0, confirmed(9, 0), at(2));
    attempt.failed(2, at(3));
    assert_eq!(attempt.outcome(), Some(&no_quorum(1, 2, 3)));
}

#[test]
fn numbers_of_servers_that_do_not_exist_are_ignored() {
    let mut attempt = attempt(3);
    attempt.held(9, confirmed(1, 1000), at(1001));
    attempt.failed(9, at(1001));
    attempt.not_ours(9, at(1001));
    assert_eq!(commands(&mut attempt), [QuorumAction::Acquire(0)]);
}

#[test]
fn majority_without_tokens_is_granted_after_one_round() {
    let mut attempt = QuorumAcquire::new(5, ttl(), at(0), vec![2, 0, 1, 3, 4]);
    let plain = |sent_at| ServerLease {
        token: None,
        ..confirmed(0, sent_at)
    };
    attempt.held(2, plain(0), at(1));
    attempt.held(0, plain(1), at(2));
    assert_eq!(attempt.outcome(), None);
    attempt.held(4, plain(1), at(3));
    assert_eq!(
        attempt.outcome(),
        Some(&QuorumOutcome::Granted {
            token: None,
            ends_at: at(988),
            servers: vec![0, 2, 4],
        })
    );
    assert_eq!(attempt.actions(), [], "nothing is written back");
}

#[test]
fn process_behind_two_addresses_has_one_vote() {
    let by = |run_id, token, sent_at| ServerLease {
        run_id,
        ..confirmed(token, sent_at)
    };
    let mut attempt = attempt(3);
    attempt.held(0, by(7, 5, 1000), at(1001));
    attempt.held(1, by(7, 5, 1001), at(1002));
    assert_eq!(attempt.outcome(), None, "only one of three has the key");
    attempt.held(2, by(8, 6, 1001), at(1003));
    attempt.raised(0, by(7, 6, 1003), at(1004));
    // The name of the third server has moved to the first one.
    attempt.raised(2, by(7, 6, 1003), at(1004));
    assert_eq!(attempt.outcome(), Some(&no_quorum(1, 2, 3)));
}
