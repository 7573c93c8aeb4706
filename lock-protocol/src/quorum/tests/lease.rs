use super::*;
use QuorumAction::{Heal, Raise, Renew};

/// A lease of five servers with token 40, confirmed at the given servers by commands at 0.
fn lease(servers: &[usize]) -> QuorumLease {
    let confirmed = (0..5).map(|server| servers.contains(&server).then(|| confirmed(40, 0)));
    QuorumLease::new(ttl(), Some(token(40)), confirmed)
}

/// As `lease`, with a renewal that was sent at 300.
fn renewing(servers: &[usize]) -> QuorumLease {
    let mut lease = lease(servers);
    lease.begin_round(at(300));
    assert_eq!(lease.actions(), [0, 1, 2, 3, 4].map(Renew));
    lease
}

fn renew(lease: &mut QuorumLease, servers: &[usize]) {
    for server in servers {
        lease.renewed(*server, at(300), ms(1000));
    }
}

const RENEWED: RenewalRound = RenewalRound::Renewed {
    ends_at: Moment::from_millis(1288),
};

#[test]
fn renewal_confirmed_by_a_majority_extends_the_lease() {
    let mut lease = renewing(&[0, 1, 2, 3, 4]);
    assert_eq!(lease.ends_at(), Some(at(988)));
    renew(&mut lease, &[0, 4]);
    lease.failed(1);
    lease.failed(2);
    assert_eq!(lease.round(), RenewalRound::Pending);
    assert_eq!(lease.ends_at(), Some(at(988)));
    renew(&mut lease, &[3]);
    assert_eq!(lease.round(), RENEWED);
    assert_eq!(lease.actions(), []);
}

#[test]
fn renewal_without_a_majority_is_unknown_and_keeps_the_end() {
    let mut lease = renewing(&[0, 1, 2, 3, 4]);
    renew(&mut lease, &[0, 1]);
    lease.failed(2);
    lease.failed(3);
    lease.not_ours(4);
    assert_eq!(lease.round(), RenewalRound::Unknown);
    assert_eq!(lease.ends_at(), Some(at(988)));
    assert_eq!(lease.actions(), []);
}

#[test]
fn lease_that_a_majority_lost_is_lost_and_heals_nothing() {
    let mut lease = renewing(&[0, 1, 2]);
    renew(&mut lease, &[0, 1]);
    lease.not_ours(3);
    lease.not_ours(4);
    assert_eq!(lease.round(), RenewalRound::Pending);
    lease.not_ours(2);
    assert_eq!(lease.round(), RenewalRound::Lost);
    assert_eq!(lease.actions(), []);
}

/// A lease that servers 0, 1 and 2 granted, while 3 and 4 had not replied to the acquire.
fn granted_by_three() -> QuorumLease {
    let mut lease = lease(&[0, 1, 2]);
    lease.may_still_hold(3);
    lease.may_still_hold(4);
    lease
}

#[test]
fn server_that_replies_after_the_grant_counts_after_its_raise() {
    let mut lease = granted_by_three();
    // A higher token than that of the grant does not change the grant.
    let lower = Raise(3, token(40));
    let higher = QuorumAction::SetToken(4, token(40));
    for (server, given, action) in [(3, 39, lower), (4, 41, higher)] {
        lease.held(server, confirmed(given, 0), at(200));
        assert_eq!(lease.actions(), [action]);
        lease.raised(server, confirmed(40, 200), at(300));
    }
    lease.begin_round(at(300));
    lease.not_ours(0);
    lease.not_ours(1);
    assert_eq!(lease.ends_at(), Some(at(988)), "three servers are left");
}

#[test]
fn server_that_replies_after_the_first_renewal_began_is_healed_by_it() {
    let mut lease = granted_by_three();
    lease.begin_round(at(300));
    let _renewals = lease.actions();
    lease.held(3, confirmed(39, 0), at(400));
    lease.failed(4);
    assert_eq!(lease.actions(), []);
    renew(&mut lease, &[0, 1, 2, 3]);
    assert_eq!(lease.actions(), [Raise(3, token(40))]);
}

#[test]
fn busy_or_failed_server_after_the_grant_does_not_count() {
    let mut lease = granted_by_three();
    lease.busy(3);
    lease.failed(4);
    for server in [3, 4] {
        lease.held(server, confirmed(39, 0), at(200));
    }
    assert_eq!(lease.actions(), []);
}

/// Another holder had the key there, or no reply came.
#[test]
fn server_without_the_key_is_asked_again_after_the_grant() {
    let mut lease = lease(&[0, 1, 2, 4]);
    assert!(lease.misses_servers());
    lease.ask_again(at(100));
    assert_eq!(lease.actions(), [Heal(3)]);
    // Not twice at the same time.
    assert!(!lease.misses_servers());
    lease.ask_again(at(110));
    assert_eq!(lease.actions(), []);
    for (end, now) in [
        (QuorumLease::busy as fn(&mut QuorumLease, usize), 200),
        (QuorumLease::failed, 300),
    ] {
        end(&mut lease, 3);
        assert!(lease.misses_servers());
        lease.ask_again(at(now));
        assert_eq!(lease.actions(), [Heal(3)]);
    }
    lease.held(3, confirmed(39, 300), at(310));
    assert_eq!(lease.actions(), [Raise(3, token(40))]);
    lease.raised(3, confirmed(40, 310), at(320));
    assert!(!lease.misses_servers());
    // It counts: without it, these two are no majority.
    lease.not_ours(0);
    lease.not_ours(1);
    assert_eq!(lease.ends_at(), Some(at(988)));
}

#[test]
fn server_that_has_not_replied_to_the_acquire_is_asked_again_once_that_has_failed() {
    let mut lease = granted_by_three();
    assert!(!lease.misses_servers());
    lease.failed(3);
    lease.ask_again(at(100));
    assert_eq!(lease.actions(), [Heal(3)]);
}

#[test]
fn server_in_quarantine_is_asked_again_beside_a_trusted_majority() {
    let mut lease = lease(&[0, 1, 2]);
    lease.restarted(3);
    lease.may_still_hold(4);
    assert!(lease.misses_servers());
    lease.ask_again(at(100));
    assert_eq!(lease.actions(), [Heal(3)]);
    lease.failed(3);
    lease.held(4, confirmed(39, 0), at(110));
    lease.raised(4, confirmed(40, 110), at(120));
    lease.restarted(0);
    let mut later = lease.clone();
    later.restarted(1);
    for lease in [&mut lease, &mut later] {
        let _raises = lease.actions();
        lease.ask_again(at(200));
    }
    assert_eq!(lease.actions(), [Heal(0), Heal(3)]);
    // Another one may have forgotten the lease, so that no majority remembers it.
    assert!(!later.misses_servers());
    assert_eq!(later.actions(), []);
}

#[test]
fn servers_that_are_healed_together_tell_the_highest_token() {
    let mut lease = lease(&[0, 1, 2]);
    lease.ask_again(at(100));
    assert_eq!(lease.actions(), [Heal(3), Heal(4)]);
    lease.held(3, confirmed(41, 100), at(110));
    assert_eq!(lease.actions(), [0, 1, 2, 3].map(|at| Raise(at, token(41))));
    lease.held(4, confirmed(42, 100), at(120));
    let raises = [0, 1, 2, 3, 4].map(|at| Raise(at, token(42)));
    assert_eq!(lease.actions(), raises);
    // A reply to the first raise doesn't count.
    lease.raised(3, confirmed(41, 110), at(130));
    for server in 0..5 {
        lease.raised(server, confirmed(42, 120), at(140));
    }
    for server in [0, 1] {
        lease.not_ours(server);
    }
    assert!(lease.ends_at().is_some(), "three servers are left");
}

#[test]
fn lease_that_has_ended_asks_no_server_again() {
    let mut lease = lease(&[0, 1, 2]);
    lease.ask_again(at(988));
    assert_eq!(lease.actions(), []);
}

#[test]
fn reply_to_an_earlier_round_does_not_count() {
    let mut lease = renewing(&[0, 1, 2, 3, 4]);
    lease.begin_round(at(600));
    renew(&mut lease, &[0, 1, 2, 3, 4]);
    assert_eq!(lease.round(), RenewalRound::Pending);
    assert_eq!(lease.ends_at(), Some(at(988)));
}

#[test]
fn server_that_lost_the_key_counts_again_after_its_raise() {
    let mut lease = renewing(&[0, 1, 2]);
    lease.not_ours(3);
    renew(&mut lease, &[0, 1]);
    assert_eq!(lease.actions(), []);
    renew(&mut lease, &[2]);
    assert_eq!(lease.actions(), [Heal(3)]);
    lease.held(3, confirmed(12, 310), at(320));
    assert_eq!(lease.actions(), [Raise(3, token(40))]);
    // Acquired only, it does not count.
    lease.not_ours(0);
    assert_eq!(lease.ends_at(), None);
    let mut lease = renewing(&[0, 1, 2]);
    lease.not_ours(3);
    renew(&mut lease, &[0, 1, 2]);
    lease.held(3, confirmed(12, 310), at(320));
    lease.raised(3, confirmed(40, 320), at(330));
    lease.not_ours(0);
    assert_eq!(lease.ends_at(), Some(at(1288)));
}

#[test]
fn server_that_gave_the_key_after_the_grant_is_raised() {
    let mut lease = renewing(&[0, 1, 2]);
    renew(&mut lease, &[0, 1, 2, 3]);
    assert_eq!(lease.actions(), [Raise(3, token(40))]);
    lease.raised(3, confirmed(40, 320), at(330));
    lease.begin_round(at(600));
    let _ = lease.actions();
    for server in 0..4 {
        lease.renewed(server, at(600), ms(1000));
    }
    assert_eq!(lease.actions(), []);
}

#[test]
fn higher_token_of_a_healed_server_is_written_to_all() {
    let mut lease = renewing(&[0, 1, 2]);
    renew(&mut lease, &[0, 1, 2]);
    lease.not_ours(4);
    assert_eq!(lease.actions(), [Heal(4)]);
    lease.held(4, confirmed(90, 310), at(320));
    let raises = [0, 1, 2, 4].map(|server| Raise(server, token(90)));
    assert_eq!(lease.actions(), raises);
    lease.raised(4, confirmed(40, 320), at(330));
    lease.not_ours(0);
    assert_eq!(lease.ends_at(), None);
}

#[test]
fn busy_server_is_not_healed_before_the_next_round() {
    let mut lease = renewing(&[0, 1, 2]);
    renew(&mut lease, &[0, 1, 2]);
    lease.not_ours(4);
    assert_eq!(lease.actions(), [Heal(4)]);
    lease.busy(4);
    lease.held(4, confirmed(41, 310), at(320));
    renew(&mut lease, &[3]);
    assert_eq!(lease.actions(), [Raise(3, token(40))]);
}

#[test]
fn healing_after_the_end_of_the_lease_does_not_count() {
    let mut lease = renewing(&[0, 1, 2]);
    renew(&mut lease, &[0, 1, 2]);
    lease.not_ours(4);
    let _ = lease.actions();
    lease.held(4, confirmed(12, 310), at(1288));
    assert_eq!(lease.actions(), []);
}

#[test]
fn restarted_server_counts_only_when_it_is_healed_beside_a_trusted_majority() {
    let mut lease = renewing(&[0, 1, 2, 3]);
    lease.restarted(3);
    renew(&mut lease, &[0, 1, 3]);
    assert_eq!(lease.round(), RenewalRound::Pending);
    assert_eq!(lease.actions(), []);
    renew(&mut lease, &[2]);
    assert_eq!(lease.round(), RENEWED);
    assert_eq!(lease.actions(), [Heal(3)]);
    lease.held(3, confirmed(1, 310), at(315));
    lease.raised(3, confirmed(40, 315), at(320));
    lease.begin_round(at(600));
    let _ = lease.actions();
    for server in [0, 1, 3] {
        lease.renewed(server, at(600), ms(1000));
    }
    let ends_at = at(1588);
    assert_eq!(lease.round(), RenewalRound::Renewed { ends_at });
    // Healed itself, it does not help to heal another server in quarantine.
    lease.restarted(4);
    lease.not_ours(4);
    assert_eq!(lease.actions(), []);
    // A server that is not in quarantine is healed beside it.
    lease.not_ours(2);
    assert_eq!(lease.actions(), [Heal(2)]);
}

#[test]
fn server_after_its_quarantine_counts_as_before() {
    let mut lease = lease(&[0, 1, 2]);
    lease.restarted(0);
    lease.trusted(0);
    lease.begin_round(at(300));
    renew(&mut lease, &[0, 1, 2]);
    assert_eq!(lease.round(), RENEWED);
}

#[test]
fn server_without_tokens_counts_as_soon_as_it_gave_the_key_again() {
    let plain = |sent_at| ServerLease {
        token: None,
        ..confirmed(0, sent_at)
    };
    let granted = (0..5).map(|server| (server < 3).then(|| plain(0)));
    let mut lease = QuorumLease::new(ttl(), None, granted);
    lease.begin_round(at(300));
    let _renewals = lease.actions();
    renew(&mut lease, &[0, 1, 2]);
    lease.not_ours(3);
    assert_eq!(lease.actions(), [Heal(3)]);
    lease.held(3, plain(310), at(320));
    assert_eq!(lease.actions(), [], "nothing is written back");
    lease.not_ours(0);
    assert_eq!(lease.ends_at(), Some(at(1288)));
    lease.not_ours(1);
    assert_eq!(lease.ends_at(), None);
}

/// The confirmation of the process with this run id.
fn by(run_id: u64, sent_at: u64) -> ServerLease {
    ServerLease {
        run_id,
        ..confirmed(40, sent_at)
    }
}

fn met(run_id: u64) -> MetProcess {
    MetProcess {
        run_id,
        counts: true,
    }
}

#[test]
fn process_that_two_addresses_led_to_one_after_the_other_has_one_vote() {
    let granted = [Some(by(7, 0)), Some(by(8, 0)), None];
    let mut lease = QuorumLease::new(ttl(), Some(token(40)), granted.into_iter());
    assert_eq!(lease.ends_at(), Some(at(988)));
    lease.begin_round(at(300));
    // The address of the process 8 leads elsewhere now, where nobody replies.
    lease.met(1, met(9));
    lease.met(2, met(8));
    lease.renewed(2, at(300), ms(1000));
    let mut lost = lease.clone();
    lost.not_ours(0);
    assert_eq!(lost.ends_at(), None, "only 8 has confirmed it, but twice");
    lease.renewed(0, at(300), ms(1000));
    assert_eq!(lease.round(), RENEWED, "7 and 8");
    // It moves on within the round.
    lease.met(1, met(8));
    lease.renewed(1, at(310), ms(1000));
    assert_eq!((lease.confirmations(), lease.round()), (2, RENEWED));
}

#[test]
fn healing_that_another_process_confirmed_does_not_count() {
    let granted = [Some(by(7, 0)), Some(by(8, 0)), None];
    let mut lease = QuorumLease::new(ttl(), None, granted.into_iter());
    lease.begin_round(at(300));
    let _renewals = lease.actions();
    for (server, run_id) in [(0, 7), (1, 8)] {
        lease.met(server, met(run_id));
        lease.renewed(server, at(300), ms(1000));
    }
    lease.met(2, met(9));
    lease.not_ours(2);
    assert_eq!(lease.actions(), [Heal(2)]);
    // It restarted meanwhile, and may have forgotten who had the key.
    let plain = ServerLease {
        token: None,
        ..by(10, 310)
    };
    lease.held(2, plain, at(320));
    lease.not_ours(0);
    assert_eq!(lease.ends_at(), None);
}

#[test]
fn restart_before_the_grant_takes_no_vote_of_it() {
    let granted = [Some(by(7, 0)), Some(by(8, 0)), None];
    let mut lease = QuorumLease::new(ttl(), Some(token(40)), granted.into_iter());
    let restarted = |run_id| MetProcess {
        run_id,
        counts: false,
    };
    lease.met_at_grant(0, restarted(9));
    lease.met_at_grant(2, restarted(10));
    assert_eq!(lease.ends_at(), Some(at(988)));
}
