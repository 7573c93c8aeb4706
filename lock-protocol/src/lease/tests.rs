use super::*;

fn lease_config(ttl_ms: u64, renew: Renew) -> LeaseConfig {
    LeaseConfig {
        ttl: Ttl::new(Duration::from_millis(ttl_ms)).unwrap(),
        renew,
        max_hold: None,
        margin: Duration::ZERO,
        kind: Kind::Exclusive,
    }
}

fn at(ms: u64) -> Moment {
    Moment::from_millis(ms)
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn fresh() -> Lease {
    Lease::confirmed(lease_config(30_000, Renew::Auto), at(1_000), secs(30))
}

#[test]
fn validity_counts_from_the_send_time_and_subtracts_the_margin() {
    let lease = fresh();
    assert_eq!(lease.deadline(), Some(at(1_000 + 30_000 - 300 - 2)));
    assert!(lease.is_valid(at(30_697)));
    assert!(!lease.is_valid(at(30_698)));
    assert!(lease.is_lost(at(30_698)));
    assert_eq!(lease.remaining(at(30_000)), Duration::from_millis(698));
    assert_eq!(lease.remaining(at(40_000)), Duration::ZERO);
}

#[test]
fn auto_renews_after_a_third_of_the_ttl() {
    let mut lease = fresh();
    assert_eq!(
        lease.next_action(at(2_000)),
        LeaseAction::WaitUntil(at(11_000))
    );
    assert_eq!(
        lease.next_action(at(11_000)),
        LeaseAction::Renew { before: at(30_698) }
    );
    lease.renewed(at(11_000), secs(30), at(11_005));
    assert_eq!(lease.deadline(), Some(at(40_698)));
    assert_eq!(
        lease.next_action(at(11_005)),
        LeaseAction::WaitUntil(at(21_000))
    );
}

#[test]
fn renewal_is_late_after_half_of_the_lease_or_a_sixth_after_its_interval() {
    let lease = fresh();
    // The lease that the holder counts has 29,698 ms.
    assert!(!lease.is_late(at(1_000 + 14_849)));
    assert!(lease.is_late(at(1_000 + 14_951)));
    assert!(!lease.is_late(at(40_000)), "it has ended");
    let every = |ms| Renew::Every(Duration::from_millis(ms));
    let rare = Lease::confirmed(
        lease_config(1_200, every(600)),
        at(0),
        Duration::from_millis(1_200),
    );
    assert!(!rare.is_late(at(790)), "its interval is half of the ttl");
    assert!(rare.is_late(at(801)));
    let often = Lease::confirmed(
        lease_config(1_200, every(10)),
        at(0),
        Duration::from_millis(1_200),
    );
    assert!(!often.is_late(at(590)));
    assert!(often.is_late(at(601)));
}

#[test]
fn renew_never_does_not_renew_and_every_renews_at_the_interval() {
    let mut never = Lease::confirmed(lease_config(1_000, Renew::Never), at(0), secs(1));
    assert_eq!(never.next_action(at(1)), LeaseAction::WaitUntil(at(988)));
    let every = Renew::Every(Duration::from_millis(200));
    let mut lease = Lease::confirmed(lease_config(1_000, every), at(0), secs(1));
    assert_eq!(lease.next_action(at(1)), LeaseAction::WaitUntil(at(200)));
}

#[test]
fn handover_lease_is_extended_to_the_ttl_whatever_renew_says() {
    let mut lease = Lease::handed_over(
        lease_config(30_000, Renew::Never),
        at(0),
        HANDOVER_LEASE,
        at(1_978),
    );
    assert_eq!(
        lease.next_action(at(667)),
        LeaseAction::Renew { before: at(1_978) }
    );
    lease.renewed(at(667), secs(30), at(668));
    assert_eq!(
        lease.next_action(at(668)),
        LeaseAction::WaitUntil(at(667 + 29_698))
    );
}

#[test]
fn renewal_without_a_reply_is_repeated_until_the_deadline() {
    let mut lease = fresh();
    // The pause is a tenth of what is left, at most a second.
    lease.unanswered(at(11_050));
    assert!(lease.is_valid(at(11_050)));
    assert_eq!(
        lease.next_action(at(11_050)),
        LeaseAction::WaitUntil(at(12_050))
    );
    assert_eq!(
        lease.next_action(at(12_050)),
        LeaseAction::Renew { before: at(30_698) }
    );
    lease.unanswered(at(30_598));
    assert_eq!(
        lease.next_action(at(30_598)),
        LeaseAction::WaitUntil(at(30_608))
    );
    lease.unanswered(at(30_690));
    assert_eq!(
        lease.next_action(at(30_690)),
        LeaseAction::WaitUntil(at(30_698))
    );
    assert_eq!(lease.next_action(at(30_698)), LeaseAction::Done);
    assert!(lease.is_lost(at(30_698)));
}

#[test]
fn refused_renewal_loses_the_lease_for_ever() {
    let mut lease = fresh();
    lease.refused();
    assert!(lease.is_lost(at(1_001)));
    lease.renewed(at(1_002), secs(30), at(1_003));
    assert!(lease.is_lost(at(1_003)));
}

#[test]
fn confirmation_after_the_deadline_does_not_revive_the_lease() {
    let mut lease = fresh();
    lease.renewed(at(30_690), secs(30), at(30_698));
    assert!(lease.is_lost(at(30_698)));
    assert_eq!(lease.next_action(at(30_698)), LeaseAction::Done);
}

#[test]
fn refusal_after_the_release_is_no_loss() {
    let mut lease = fresh();
    assert!(lease.release());
    lease.refused();
    assert!(!lease.is_lost(at(2_000)));
    assert!(lease.is_released());
    assert!(!lease.release());
    assert_eq!(lease.next_action(at(99_999)), LeaseAction::Done);
    assert_eq!(lease.next_deadline(), None);
}

#[test]
fn older_confirmation_never_shortens_the_lease() {
    let mut lease = fresh();
    lease.renewed(at(11_000), secs(30), at(11_005));
    lease.renewed(at(10_000), secs(30), at(11_006));
    assert_eq!(lease.deadline(), Some(at(40_698)));
}

#[test]
fn longest_possible_leases_are_valid() {
    for longest in [Duration::MAX, LONGEST, Duration::from_millis(u64::MAX)] {
        let mut lease = Lease::confirmed(lease_config(1_000, Renew::Auto), at(5), longest);
        lease.renewed(at(6), longest, at(7));
        assert!(lease.is_valid(at(1_000_000_000)), "{longest:?}");
    }
}

#[test]
fn younger_confirmation_counts_although_it_confirms_less() {
    let longest = Some(Duration::from_secs(31));
    let lease_config = LeaseConfig {
        max_hold: longest,
        ..lease_config(30_000, Renew::Auto)
    };
    let mut lease = Lease::confirmed(lease_config, at(0), secs(30));
    lease.renewed(at(10_000), secs(21), at(10_005));
    assert_eq!(lease.deadline(), Some(at(31_000 - 210 - 2)));
    // Less than the known deadline, by the margin for a clock that runs fast.
    lease.renewed(at(20_000), secs(10), at(20_005));
    assert_eq!(lease.deadline(), Some(at(30_000 - 100 - 2)));
}

#[test]
fn endless_lease_ends_only_by_release_or_refusal() {
    let mut lease = Lease::endless(lease_config(1_000, Renew::Auto), at(0));
    assert!(lease.is_valid(at(u64::MAX / 1_000_000)));
    assert_eq!(lease.next_action(at(1)), LeaseAction::Done);
    lease.refused();
    assert!(lease.is_lost(at(1)));
}

#[test]
fn renewal_never_goes_beyond_the_longest_hold() {
    let longest = Some(Duration::from_millis(2_500));
    let lease_config = LeaseConfig {
        max_hold: longest,
        ..lease_config(1_000, Renew::Auto)
    };
    let mut lease = Lease::confirmed(lease_config, at(0), secs(1));
    lease.renewed(at(900), secs(1), at(901));
    assert_eq!(lease.deadline(), Some(at(1_888)));
    lease.renewed(at(1_800), secs(1), at(1_801));
    assert_eq!(lease.deadline(), Some(at(2_500)));
    let ms = Duration::from_millis;
    assert_eq!(lease.renewed_ttl(at(1_000)), ms(1_000));
    assert_eq!(lease.renewed_ttl(at(1_800)), ms(700));
    assert_eq!(lease.renewed_ttl(at(2_500)), MIN_RENEWED);
    assert!(lease.is_lost(at(2_500)));

    let endless = Lease::endless(lease_config, at(100));
    assert!(endless.is_valid(at(2_599)) && endless.is_lost(at(2_600)));
}

#[test]
fn lease_is_at_risk_when_its_renewal_is_overdue_until_one_is_confirmed() {
    let mut lease = fresh();
    // It counts 29,698 ms, and its renewal is due 10 s after its confirmation. A sixth more is after half of it.
    let risk = 1_000 + 10_000 + 29_698 / 6;
    assert!(!lease.is_at_risk(at(risk)));
    assert!(lease.is_at_risk(at(risk + 1)) && lease.is_at_risk(at(30_697)));
    assert_eq!(
        lease.next_action(at(11_000)),
        LeaseAction::Renew { before: at(30_698) }
    );
    assert!(
        lease.is_at_risk(at(risk + 1)),
        "a renewal on its way is overdue too"
    );
    lease.renewed(at(20_000), secs(30), at(20_005));
    assert!(!lease.is_at_risk(at(20_005)), "the renewal succeeded");
    assert!(!lease.is_at_risk(at(20_000 + 14_849)));
    assert!(lease.is_at_risk(at(20_000 + 14_950)));
}

#[test]
fn failed_renewal_is_a_risk_once_less_than_half_of_the_lease_is_left() {
    let every = Renew::Every(secs(15));
    let mut lease = Lease::confirmed(lease_config(30_000, every), at(1_000), secs(30));
    let half = at(1_000 + 29_698 / 2);
    lease.unanswered(at(11_050));
    assert!(!lease.is_at_risk(at(11_050)), "most of the lease is left");
    assert_eq!(lease.at_risk_from(), Some(half));
    assert!(lease.is_at_risk(half));
    // Without the failure, the reply of a renewal after 15 s would have a sixth of the lease.
    lease.renewed(at(16_000), secs(30), at(16_010));
    let overdue = 16_000 + 15_000 + 29_698 / 6;
    assert!(!lease.is_at_risk(at(overdue)) && lease.is_at_risk(at(overdue + 1)));
}

#[test]
fn lease_that_is_over_is_not_at_risk() {
    let late = at(20_000);
    assert!(fresh().is_at_risk(late));
    let (mut refused, mut released) = (fresh(), fresh());
    refused.refused();
    released.release();
    for lease in [refused, released] {
        assert!(!lease.is_at_risk(late));
        assert_eq!(lease.at_risk_from(), None);
    }
    assert!(!fresh().is_at_risk(at(30_698)), "it has expired");
}

#[test]
fn lease_that_no_renewal_could_extend_is_not_at_risk() {
    let never = Lease::confirmed(lease_config(1_000, Renew::Never), at(0), secs(1));
    assert!(!never.is_at_risk(at(900)));
    assert!(!Lease::endless(lease_config(1_000, Renew::Auto), at(0)).is_at_risk(at(5_000)));

    let lease_config = LeaseConfig {
        max_hold: Some(Duration::from_millis(2_500)),
        ..lease_config(1_000, Renew::Auto)
    };
    let mut lease = Lease::confirmed(lease_config, at(0), secs(1));
    assert!(lease.is_at_risk(at(900)));
    lease.renewed(at(900), secs(1), at(900));
    // Confirmed for the rest of the longest hold, and one millisecond less than that.
    for (sent, remaining) in [(1_500, 1_000), (1_800, 700)] {
        lease.renewed(at(sent), Duration::from_millis(remaining), at(sent));
        lease.unanswered(at(sent + 500));
        assert!(lease.is_valid(at(2_450)) && !lease.is_at_risk(at(2_450)));
    }
}

#[test]
fn handover_lease_is_at_risk_by_its_own_length() {
    let handed_over = |renew| {
        let config = lease_config(30_000, renew);
        Lease::handed_over(config, at(0), HANDOVER_LEASE, at(1_978))
    };
    for renew in [Renew::Auto, Renew::Never] {
        let lease = handed_over(renew);
        // Due after a third of 2 s.
        assert_eq!(
            lease.at_risk_from(),
            Some(
                at(0)
                    .plus(HANDOVER_LEASE / 3)
                    .plus(Duration::from_millis(1_978) / 6)
            )
        );
    }
}
