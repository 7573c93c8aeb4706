//! What a failover excuses.

use fault_suite::checks::Check;
use fault_suite::history::Assumption;
use fault_suite::topology::Topology;

use super::record::{Held, RecordBuilder, both};

/// What a failover adds to the tokens, in microseconds.
const LEAD: u64 = 60_000_000;

/// The second holder has a lower token, in the window of a failover.
fn behind(topology: Topology, by: u64, change: impl FnOnce(&mut Held, &mut Held)) -> RecordBuilder {
    let mut record = both(|first, second| {
        first.token = Some(LEAD * 10);
        second.token = Some(LEAD * 10 - by);
        change(first, second);
    });
    record.history.topology = Some(topology);
    record.fault(50, 450, Assumption::Outside);
    record
}

/// The new primary lost the last steps of the counter, and gave out tokens from before.
#[test]
fn token_that_a_failover_repeats_is_found() {
    for topology in [Topology::Sentinel, Topology::Cluster] {
        // The first holder had released before the second one got the lock, or its lease had ended.
        behind(topology, 1, |_, _| {}).breaks_inside(Check::Tokens);
        behind(topology, 18_000_000, |first, _| {
            (first.until, first.released, first.lost) = (401, None, Some(401));
        })
        .breaks_inside(Check::Tokens);
        // The second one asked after the first one had the lock.
        let asked_later = |_: &mut Held, second: &mut Held| second.requested = 150;
        behind(topology, 1, asked_later).breaks_inside(Check::Tokens);
        // Both believe that they have the lock. That is no excuse for the token.
        let overlap = behind(topology, 1, |first, _| first.released = Some(500)).found();
        let inside = overlap
            .iter()
            .filter(|it| it.assumption == Assumption::Inside);
        let inside: Vec<_> = inside.map(|it| it.check).collect();
        assert_eq!(inside, [Check::Tokens]);
    }
}

/// The tokens of the new primary are above those that the old one still gives out.
#[test]
fn token_of_an_old_primary_is_outside_the_guarantees() {
    for topology in [Topology::Sentinel, Topology::Cluster] {
        let at_old = |requested| {
            behind(topology, LEAD - 20_000_000, move |_, second| {
                second.requested = requested;
            })
        };
        for requested in [95, 150] {
            let violation = at_old(requested).breaks(Check::Tokens);
            assert_eq!(violation.assumption, Assumption::Outside);
        }
        // Nothing has failed over.
        let mut early = at_old(95);
        early.history.faults.clear();
        early.breaks_inside(Check::Tokens);
    }
}

#[test]
fn token_that_goes_back_at_a_quorum_is_found() {
    for by in [1, LEAD] {
        behind(Topology::Quorum, by, |_, _| {}).breaks_inside(Check::Tokens);
    }
}
