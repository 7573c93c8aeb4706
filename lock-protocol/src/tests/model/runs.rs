//! What the model explores in each test run.

use super::rules::{Budget, Mutation, Rules, Sight};
use super::{
    EXCLUSION, FINAL, GRANTS, SERVED, holds, is_detected, millis, prompt_rules, rules, ttl,
};

#[test]
fn exclusion_holds_for_a_waiter_and_a_single_attempt_over_a_bad_network() {
    // A handover gives less than the ttl, so the lease is extended.
    let rules = Rules {
        begin_by: 1,
        wait: millis(140),
        ttl: ttl(150),
        budget: Budget {
            silences: 1,
            renewals: 1,
            ..Budget::default()
        },
        ..rules()
    };
    let expected = [
        Sight::HandedOverByNotification,
        Sight::GrantNeededARenewal,
        Sight::GrantWasGivenUp,
        Sight::LateAcquireRefused,
        Sight::HandoverLeaseExpired,
        Sight::HandoverLeaseExtended,
        Sight::LostReplyRepeated,
        Sight::CancelMetAGrant,
        Sight::CancelHadToWait,
        Sight::RenewalRefused,
        Sight::LostAtTheDeadline,
    ];
    holds("two clients", rules, &expected);
}

#[test]
fn exclusion_holds_for_two_waiters_over_a_bad_network() {
    let rules = Rules {
        may_try: 0,
        may_wait: 0b11,
        budget: Budget {
            silences: 1,
            ..Budget::default()
        },
        ..rules()
    };
    let expected = [Sight::HandedOverByNotification, Sight::CancelHadToWait];
    holds("two waiters", rules, &expected);
}

#[test]
fn exclusion_holds_for_three_clients_over_a_bad_network() {
    let expected = [Sight::HandedOverByNotification, Sight::HandoverLeaseExpired];
    holds("three clients", three_clients(), &expected);
}

/// One client that tries once, and two clients that wait.
fn three_clients() -> Rules {
    Rules {
        clients: 3,
        begin_by: 0,
        ..rules()
    }
}

#[test]
fn exclusion_holds_when_clients_crash_or_drop_their_future() {
    let rules = Rules {
        may_try: 0b11,
        may_wait: 0b11,
        begin_by: 1,
        horizon: 3,
        budget: Budget {
            crashes: 1,
            quits: 1,
            ..Budget::default()
        },
        ..rules()
    };
    let expected = [Sight::CancelMetAGrant, Sight::CancelHadToWait];
    holds("crashes", rules, &expected);
}

fn with_loss_of_memory() -> Rules {
    Rules {
        budget: Budget {
            snapshots: 1,
            restores: 1,
            ..Budget::default()
        },
        ..rules()
    }
}

#[test]
fn tokens_grow_after_a_restart_from_an_old_snapshot() {
    let expected = [
        Sight::TokenSeededAgain,
        Sight::TwoHoldersOutsideThePromise,
        Sight::RenewalRefused,
    ];
    holds("old snapshot", with_loss_of_memory(), &expected);
}

/// All faults in one exploration, at most this many in each run.
fn all_faults(most_faults: u8) -> Rules {
    Rules {
        may_try: 0b01,
        may_wait: 0b10,
        begin_by: 0,
        horizon: 3,
        budget: Budget {
            duplicates: 1,
            silences: 1,
            crashes: 1,
            quits: 1,
            snapshots: 1,
            restores: 1,
            jumps: 1,
            setbacks: 1,
            ..Budget::default()
        },
        most_faults,
        ..rules()
    }
}

#[test]
fn promises_hold_for_all_pairs_of_faults() {
    let expected = [
        Sight::HandedOverByNotification,
        Sight::CancelMetAGrant,
        Sight::CancelledCameBack,
        Sight::TwoHoldersOutsideThePromise,
    ];
    holds("all faults", all_faults(2), &expected);
}

/// A dropped future, a timeout, a duplicated and a lost message, a restart and a clock that is set back,
/// each once in a run, in any order. A message that is never delivered is lost.
fn six_faults_together(horizon: u64) -> Rules {
    let mut rules = all_faults(u8::MAX);
    rules.horizon = horizon;
    rules.budget.crashes = 0;
    rules.budget.jumps = 0;
    rules
}

#[test]
fn promises_hold_for_six_faults_together() {
    let expected = [Sight::CancelMetAGrant, Sight::CancelledCameBack];
    holds("six faults together", six_faults_together(2), &expected);
}

#[test]
fn exclusion_ends_only_when_the_clock_jumps_forward() {
    let rules = Rules {
        budget: Budget {
            jumps: 1,
            ..Budget::default()
        },
        ..rules()
    };
    let expected = [Sight::TwoHoldersOutsideThePromise];
    holds("clock forward", rules, &expected);
}

/// The same rules with more time and more faults. Run it after changes of the protocol, optimized.
#[test]
#[ignore = "explores for minutes"]
fn everything_for_longer() {
    holds("all triples of faults", all_faults(3), &[]);

    let name = "six faults together, for longer";
    holds(name, six_faults_together(3), &[]);

    let mut waiters = all_faults(2);
    waiters.may_try = 0;
    waiters.may_wait = 0b11;
    holds("all pairs of faults, two waiters", waiters, &[]);

    let mut two = rules();
    two.horizon = 5;
    two.wait = millis(140);
    two.may_try = 0b11;
    two.may_wait = 0b11;
    two.budget.silences = 1;
    two.budget.renewals = 1;
    holds("two clients, for longer", two, &[]);

    let mut three = three_clients();
    three.budget.silences = 1;
    holds("three clients, for longer", three, &[]);

    let mut lossy = prompt_rules();
    lossy.clients = 3;
    lossy.budget.losses = 2;
    lossy.budget.crashes = 1;
    holds("prompt, for longer", lossy, &[]);
}

/// A clock that is set back only makes leases longer. But a late copy of an acquire is no longer late:
/// a cancelled acquisition may come back, and ends with its ttl or its wait.
#[test]
fn exclusion_and_tokens_survive_a_clock_that_is_set_back() {
    let rules = Rules {
        horizon: 3,
        budget: Budget {
            silences: 1,
            setbacks: 1,
            ..Budget::default()
        },
        ..rules()
    };
    let expected = [Sight::HandedOverByNotification, Sight::CancelledCameBack];
    holds("clock back", rules, &expected);
}

/// No connection duplicates commands, but a client library that retries by itself does. Then a
/// cancelled acquisition may come back, without a client that believes to hold the lock.
#[test]
fn exclusion_and_tokens_survive_duplicated_commands() {
    let rules = Rules {
        may_try: 0,
        may_wait: 0b11,
        horizon: 3,
        budget: Budget {
            duplicates: 1,
            renewals: 1,
            ..Budget::default()
        },
        ..rules()
    };
    let expected = [Sight::HandedOverByNotification, Sight::CancelledCameBack];
    holds("duplicated", rules, &expected);
}

#[test]
fn waits_end_in_time_and_no_wakeup_is_lost() {
    let mut two = prompt_rules();
    two.ttl = ttl(150);
    two.min_hold = Some(millis(70));
    two.budget.losses = 2;
    two.budget.crashes = 1;
    two.budget.renewals = 1;
    let expected = [
        Sight::HandedOverByNotification,
        Sight::HandoverLeaseExpired,
        Sight::HandoverLeaseExtended,
        Sight::LostReplyRepeated,
    ];
    holds("prompt, two waiters", two, &expected);

    let mut three = prompt_rules();
    three.clients = 3;
    three.budget.losses = 1;
    holds("prompt, three waiters", three, &expected[..2]);

    let mut restart = prompt_rules();
    restart.budget = Budget {
        losses: 1,
        ..Budget {
            silences: u8::MAX,
            ..with_loss_of_memory().budget
        }
    };
    let expected = [Sight::HandedOverByNotification, Sight::TokenSeededAgain];
    holds("prompt, old snapshot", restart, &expected);
}

#[test]
fn model_detects_each_mutation() {
    let mut late = rules();
    late.budget.silences = 1;
    is_detected(Mutation::DeadlineFromReply, EXCLUSION, rules());
    is_detected(Mutation::NoNotAfter, FINAL, late);
    is_detected(Mutation::CancelFinalAtOnce, FINAL, late);

    is_detected(Mutation::DeadlineFromReceipt, EXCLUSION, three_clients());
    is_detected(Mutation::PlainDelete, EXCLUSION, three_clients());

    // One millisecond less than three ticks: the lease has ended on the server, but not yet for a
    // slow clock without the margin.
    let mut slow = rules();
    slow.ttl = ttl(150);
    is_detected(Mutation::NoMargin, EXCLUSION, slow);

    let mut renewing = rules();
    renewing.budget.renewals = 1;
    is_detected(Mutation::RenewalRecreates, FINAL, renewing);

    is_detected(Mutation::BareCounter, GRANTS, with_loss_of_memory());
    is_detected(Mutation::FloorKept, GRANTS, with_loss_of_memory());

    let mut prompt = prompt_rules();
    prompt.budget.losses = 1;
    is_detected(Mutation::NotificationsOnly, SERVED, prompt);
}
