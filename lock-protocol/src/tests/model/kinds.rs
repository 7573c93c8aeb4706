//! Readers, writers and permits, explored with a lost reply, a late copy and a crash.

use super::rules::{Budget, Rules, Sight};
use super::{holds, prompt_rules, rules};
use crate::kind::Kind;

/// One of two permits.
const PERMIT: Kind = Kind::Permits { of: 2, weight: 1 };

/// Three clients that wait, with one fault of any kind in each run.
fn three(kinds: [Kind; 3], budget: Budget) -> Rules {
    Rules {
        clients: 3,
        kinds,
        may_try: 0,
        may_wait: 0b111,
        begin_by: 0,
        horizon: 3,
        budget,
        most_faults: 1,
        ..rules()
    }
}

const LOST_REPLY: Budget = Budget {
    silences: 1,
    ..NO_FAULT
};
const LATE_COPY: Budget = Budget {
    duplicates: 1,
    ..NO_FAULT
};
const CRASH: Budget = Budget {
    crashes: 1,
    ..NO_FAULT
};
const NO_FAULT: Budget = Budget {
    duplicates: 0,
    losses: 0,
    silences: 0,
    crashes: 0,
    quits: 0,
    renewals: 0,
    snapshots: 0,
    restores: 0,
    jumps: 0,
    setbacks: 0,
};

const READERS_AND_WRITER: [Kind; 3] = [Kind::Read, Kind::Exclusive, Kind::Read];

#[test]
fn kinds_exclude_each_other_for_two_readers_and_a_writer() {
    for (name, budget) in [
        ("lost reply", LOST_REPLY),
        ("late copy", LATE_COPY),
        ("crash", CRASH),
    ] {
        let name = format!("two readers and a writer, {name}");
        holds(&name, three(READERS_AND_WRITER, budget), &[Sight::Shared]);
    }
}

#[test]
fn no_permit_is_given_twice_among_three_clients() {
    for (name, budget) in [
        ("lost reply", LOST_REPLY),
        ("late copy", LATE_COPY),
        ("crash", CRASH),
    ] {
        let name = format!("three clients of two permits, {name}");
        holds(&name, three([PERMIT; 3], budget), &[Sight::Shared]);
    }
}

/// A reader and a writer that becomes a reader. All three faults, in any order.
fn downgrading() -> Rules {
    Rules {
        clients: 2,
        kinds: [Kind::Exclusive, Kind::Read, Kind::Read],
        may_downgrade: 0b01,
        may_try: 0,
        may_wait: 0b11,
        begin_by: 1,
        budget: Budget {
            silences: 1,
            duplicates: 1,
            crashes: 1,
            ..NO_FAULT
        },
        most_faults: 2,
        ..rules()
    }
}

#[test]
fn downgrade_raises_the_token_and_leaves_no_second_kind() {
    let expected = [Sight::Shared, Sight::Downgraded];
    holds("a downgrade", downgrading(), &expected);
}

/// A holder that gives its lock away, two clients that resume its ticket, and each of the faults.
#[test]
fn ticket_has_one_winner_and_a_greater_token() {
    let expected = [Sight::Resumed, Sight::ResumeRefused];
    let rules = |budget| Rules {
        clients: 3,
        has_tickets: true,
        may_try: 0b001,
        may_wait: 0,
        begin_by: 1,
        budget,
        most_faults: 1,
        ..rules()
    };
    for (name, budget) in [
        ("lost reply", LOST_REPLY),
        ("late copy", LATE_COPY),
        ("crash", CRASH),
        (
            "dropped future and a renewal",
            Budget {
                quits: 1,
                renewals: 1,
                ..NO_FAULT
            },
        ),
    ] {
        holds(&format!("a ticket, {name}"), rules(budget), &expected);
    }
}

#[test]
fn waits_of_several_kinds_end() {
    let prompt = |kinds| Rules {
        clients: 3,
        kinds,
        begin_by: 0,
        budget: Budget {
            losses: 1,
            ..prompt_rules().budget
        },
        ..prompt_rules()
    };
    holds(
        "prompt, two readers and a writer",
        prompt(READERS_AND_WRITER),
        &[Sight::Shared],
    );
    holds(
        "prompt, three clients of two permits",
        prompt([PERMIT; 3]),
        &[Sight::Shared],
    );
    let downgrade = Rules {
        clients: 2,
        may_downgrade: 0b01,
        budget: Budget {
            crashes: 1,
            losses: 1,
            ..prompt_rules().budget
        },
        ..prompt([Kind::Exclusive, Kind::Read, Kind::Read])
    };
    holds("prompt, a downgrade", downgrade, &[Sight::Downgraded]);
}
