//! Dialects without tokens or without a queue.

use fault_suite::checks::Check;
use fault_suite::history::Assumption;
use fault_suite::leftovers::left_behind;
use lock_core::dialect::Dialect;
use lock_testing::{Access, AccessKind};
use test_support::RedisServer;
use tests::SET_NX_PX;

use super::record::{Held, KEY, RecordBuilder, both, ms};

/// Two held locks as in [`both`], in a dialect without tokens.
fn without_tokens(change: impl FnOnce(&mut Held, &mut Held)) -> RecordBuilder {
    let mut record = both(|first, second| {
        first.token = None;
        second.token = None;
        change(first, second);
    });
    record.history.dialect = SET_NX_PX;
    record
}

/// An access of a holder to a resource that fences nothing.
fn access(record: &mut RecordBuilder, at: u64, hold: u64, kind: AccessKind) {
    let worker = u32::try_from(hold).unwrap();
    let access = Access::new(ms(at), KEY, worker, hold, None, kind);
    record.history.accesses.push(access);
}

const fn wrote(value: u64) -> AccessKind {
    AccessKind::Write { value }
}

#[test]
fn unexpected_token_is_found() {
    without_tokens(|_, _| {}).breaks_nothing();
    without_tokens(|first, _| first.token = Some(3)).breaks_inside(Check::Tokens);
    // A dialect with tokens always gives one.
    both(|first, _| first.token = None).breaks_inside(Check::Tokens);
    both(|first, second| {
        first.token = None;
        second.token = None;
    })
    .breaks_inside(Check::Tokens);
    without_tokens(|_, second| second.ok = 399).breaks_inside(Check::Exclusion);
    let able = SET_NX_PX.capabilities();
    let left_out = Check::ALL.iter().filter(|check| !check.applies(able));
    assert_eq!(left_out.collect::<Vec<_>>(), [&Check::Stale]);
}

#[test]
fn lost_update_of_a_valid_holder_without_tokens_is_found() {
    let mut record = without_tokens(|_, _| {});
    access(&mut record, 150, 1, AccessKind::Read);
    access(&mut record, 200, 1, wrote(1));
    access(&mut record, 420, 2, AccessKind::Read);
    access(&mut record, 450, 2, wrote(2));
    record.breaks_nothing();

    let mut record = without_tokens(|_, _| {});
    access(&mut record, 150, 1, AccessKind::Read);
    access(&mut record, 160, 2, AccessKind::Read);
    access(&mut record, 200, 1, wrote(1));
    access(&mut record, 450, 2, wrote(1));
    record.breaks_inside(Check::Counter);
}

/// No token could refuse the write; but the library notified a process that ran.
#[test]
fn late_write_without_tokens_is_excused_if_it_could_not_be_prevented() {
    let late = |at| {
        let mut record = without_tokens(|first, second| {
            first.released = None;
            first.lost = Some(1_000);
            second.ok = 1_001;
            second.until = 9_000;
            second.released = Some(8_000);
        });
        access(&mut record, 900, 1, AccessKind::Read);
        access(&mut record, 1_010, 2, AccessKind::Read);
        access(&mut record, 1_020, 2, wrote(1));
        access(&mut record, at, 1, wrote(1));
        record
    };
    let outside = |record: RecordBuilder| {
        let violation = record.breaks(Check::Counter);
        assert_eq!(violation.assumption, Assumption::Outside);
    };
    // In flight when the lease ended.
    outside(late(1_240));
    late(1_260).breaks_inside(Check::Counter);
    let mut stopped = late(3_000);
    stopped.stall(1, 950, 2_990);
    outside(stopped);
    let mut another = late(3_000);
    another.stall(2, 950, 2_990);
    another.breaks_inside(Check::Counter);
    // The late write came first. The next holder had read before, and overwrote it.
    let mut record = late(1_240);
    access(&mut record, 1_250, 2, AccessKind::Read);
    access(&mut record, 1_300, 2, wrote(2));
    outside(record);
    let mut overwritten = late(1_030);
    overwritten.history.accesses.swap(2, 3);
    overwritten.history.accesses[2].at = ms(1_015);
    overwritten.history.accesses[3].at = ms(1_020);
    outside(overwritten);
}

/// There are no notifications, and every waiter polls often.
#[test]
fn idle_waiter_in_a_dialect_without_handover_is_found() {
    let waiting = |free: u64| {
        let mut record = RecordBuilder::new();
        record.history.dialect = SET_NX_PX;
        record.wait(3, 1_000, 1_900);
        record.free(1_100, 1_100 + free);
        record
    };
    waiting(300).breaks_nothing();
    waiting(400).breaks_inside(Check::Idle);
}

/// A holder that dies between `SETNX` and `EXPIRE` leaves a key without an expiry. The next client
/// that acquires repairs it, and does not count as a faulty client.
#[test]
fn key_without_expiry_is_allowed_until_the_next_acquire() {
    let server = RedisServer::start();
    let leave = || server.cli(&["SET", "lock:k1", "6f1c7f9e-5a0b-4c53-9d55-2f1f6f3f7d10 w9"]);
    leave();
    let left = left_behind(&server, Dialect::SetnxExpire);
    assert_eq!(left.unexpiring, ["lock:k1"]);
    assert_eq!(left.survivors, [""; 0]);

    leave();
    let left = left_behind(&server, SET_NX_PX);
    assert_eq!(left.unexpiring, [""; 0]);
    assert!(left.survivors.contains(&"lock:k1".to_owned()), "{left:?}");
}
