//! Overlapping holders, fencing tokens, stale writes and lost updates.

use fault_suite::checks::Check;
use fault_suite::history::Assumption;
use lock_testing::{AccessKind, Call, Kind, lost_updates};

use super::record::{Held, RecordBuilder, both, first, ms, second};

#[test]
fn sequential_holders_break_nothing() {
    both(|_, _| {}).breaks_nothing();
}

#[test]
fn overlapping_holders_are_found() {
    both(|_, second| second.ok = 399).breaks_inside(Check::Exclusion);
    // The first holder did not release, and its lease had not expired.
    both(|first, second| {
        first.released = None;
        first.lost = Some(1_000);
        second.ok = 999;
        second.released = Some(1_010);
    })
    .breaks_inside(Check::Exclusion);
}

/// A renewed lease is longer than the first one.
#[test]
fn overlap_with_a_renewed_lease_is_found() {
    let mut record = RecordBuilder::new();
    record.hold(&Held {
        released: Some(1_600),
        ..first()
    });
    record.step(900, 1, Call::Acquire, Kind::Seen).valid_until = Some(ms(1_900).into());
    record.hold(&Held {
        ok: 1_500,
        until: 2_400,
        released: Some(2_000),
        ..second()
    });
    record.breaks_inside(Check::Exclusion);
}

/// The lease of a paused holder ended. The holder does not know it, and holds nothing.
#[test]
fn holder_with_an_expired_lease_does_not_overlap() {
    both(|first, second| {
        first.released = Some(3_000);
        second.ok = 1_001;
        second.until = 2_000;
        second.released = Some(1_900);
        first.lost = Some(1_100);
    })
    .breaks_nothing();
}

#[test]
fn overlap_after_lost_keys_is_outside_the_guarantees() {
    let overlap = || both(|_, second| second.ok = 399);
    let mut record = overlap();
    record.fault(300, 350, Assumption::Outside);
    assert_eq!(
        record.breaks(Check::Exclusion).assumption,
        Assumption::Outside
    );
    let mut record = overlap();
    record.fault(300, 350, Assumption::Inside);
    record.breaks_inside(Check::Exclusion);
    // The key may be lost before its holder learns of the grant.
    let mut record = overlap();
    record.fault(92, 98, Assumption::Outside);
    assert_eq!(
        record.breaks(Check::Exclusion).assumption,
        Assumption::Outside
    );
    // The fault ended before the first request.
    let mut record = overlap();
    record.fault(50, 89, Assumption::Outside);
    record.breaks_inside(Check::Exclusion);
    // Here the fault began only afterwards.
    let mut record = overlap();
    record.fault(450, 500, Assumption::Outside);
    record.breaks_inside(Check::Exclusion);
}

#[test]
fn duplicate_token_is_found() {
    both(|_, second| second.token = Some(10)).breaks_inside(Check::Tokens);
}

#[test]
fn decreasing_token_is_found_even_after_lost_keys() {
    let mut record = both(|_, second| {
        second.requested = 401;
        second.token = Some(9);
    });
    record.fault(300, 350, Assumption::Outside);
    record.breaks_inside(Check::Tokens);
}

/// The first holder's server is another one than the second holder's.
#[test]
fn tokens_of_several_primaries_are_outside_the_guarantees() {
    let behind = |from, to| {
        let mut record = both(|_, second| {
            second.requested = 401;
            second.token = Some(9);
        });
        record.fault(from, to, Assumption::Divided);
        record
    };
    let violation = behind(50, 350).breaks(Check::Tokens);
    assert_eq!(violation.assumption, Assumption::Outside);
    // All others were at one server when the first holder got the lock.
    behind(250, 350).breaks_inside(Check::Tokens);
    let mut overlap = both(|_, second| second.ok = 399);
    overlap.fault(300, 350, Assumption::Divided);
    let violation = overlap.breaks(Check::Exclusion);
    assert_eq!(violation.assumption, Assumption::Outside);
}

/// The second acquisition began before the first was granted, but it was valid after it.
#[test]
fn tokens_follow_the_order_of_held_locks() {
    both(|_, second| second.token = Some(9)).breaks_inside(Check::Tokens);
    // If the second was never valid, the time at which its holder learned of it proves nothing.
    both(|_, second| {
        second.token = Some(9);
        second.until = 402;
        second.released = Some(403);
    })
    .breaks_nothing();
}

#[test]
fn accepted_stale_write_is_found() {
    let mut record = RecordBuilder::new();
    record.write(10, 1);
    record.access(11, AccessKind::Read);
    record.access(10, AccessKind::RefusedWrite);
    record.write(11, 2);
    record.breaks_nothing();

    let mut record = RecordBuilder::new();
    record.write(10, 1);
    record.access(11, AccessKind::Read);
    record.write(10, 2);
    record.breaks_inside(Check::Stale);
}

#[test]
fn lost_update_of_the_fenced_counter_is_found() {
    let mut record = RecordBuilder::new();
    record.write(10, 1);
    record.write(11, 2);
    record.write(12, 2);
    record.write(13, 3);
    record.breaks_inside(Check::Counter);
}

/// The lock promises nothing to a resource that does not check tokens.
#[test]
fn lost_update_of_the_unfenced_counter_is_counted() {
    let mut record = RecordBuilder::new();
    record.write(10, 1);
    record.access(11, AccessKind::Read);
    record.write(11, 2);
    record.access(10, AccessKind::RefusedWrite);
    // The unfenced counter accepted the late write.
    let mut unfenced = record.history.accesses.clone();
    unfenced[3].kind = AccessKind::Write { value: 2 };
    assert_eq!(lost_updates(&unfenced).len(), 1);
    record.history.unfenced = unfenced;
    record.breaks_nothing();
}
