//! Waiters, and keys that stay.

use fault_suite::checks::Check;
use fault_suite::history::{Assumption, KeyState};
use fault_suite::report::Report;
use fault_suite::topology::Topology;
use lock_core::dialect::Dialect;
use lock_testing::{Call, Kind};

use super::record::{Held, RecordBuilder, first, ms};

#[test]
fn idle_waiter_on_a_free_lock_is_found() {
    let waiting = |free: u64| {
        let mut record = RecordBuilder::new();
        let requested = record.wait(3, 1_000, 6_000).acquisition;
        let first = record.history.events.iter_mut();
        for event in first.filter(|event| event.acquisition == requested) {
            event.limit = event.limit.map(|_| ms(10_000));
        }
        record.free(1_500, 1_500 + free);
        record
    };
    waiting(1_200).breaks_nothing();
    waiting(1_400).breaks_inside(Check::Idle);
    // Another holder had the lock in between.
    let mut record = waiting(1_400);
    record.hold(&Held {
        requested: 2_000,
        ok: 2_100,
        until: 3_000,
        released: Some(2_110),
        ..first()
    });
    record.breaks_nothing();
    // The waiter was disconnected, and has to reconnect first.
    let mut record = waiting(1_400);
    record.fault(1_000, 1_600, Assumption::Inside);
    record.breaks_nothing();
    let mut record = waiting(1_400);
    record.stall(3, 2_000, 2_200);
    record.breaks_nothing();
}

#[test]
fn too_long_wait_is_found() {
    let waited = |to| {
        let mut record = RecordBuilder::new();
        record.wait(3, 1_000, to);
        record
    };
    waited(2_249).breaks_nothing();
    waited(2_251).breaks_inside(Check::Wait);
    let mut stalled = waited(3_000);
    stalled.stall(3, 1_100, 1_900);
    stalled.breaks_nothing();
    let mut short = waited(3_000);
    short.stall(3, 1_100, 1_200);
    short.breaks_inside(Check::Wait);
    // A dropped waiter did not wait.
    let mut dropped = RecordBuilder::new();
    let end = dropped.wait(3, 1_000, 3_000);
    end.kind = Kind::Dropped;
    dropped.breaks_nothing();
    // A waiter without an end still waits.
    let mut hanging = waited(2_000);
    hanging.history.events.pop();
    hanging.breaks_inside(Check::Wait);
    let mut hung = RecordBuilder::new();
    hung.history.hung.push(3);
    hung.breaks_inside(Check::Wait);
}

#[test]
fn key_that_outlives_its_ttl_is_found() {
    let mut record = RecordBuilder::new();
    record.history.survivors.push("lock:a".to_owned());
    record.breaks_inside(Check::Survivor);
}

/// An operation with an unconfirmed result proves nothing.
#[test]
fn unconfirmed_operation_counts_as_neither_done_nor_undone() {
    let mut record = RecordBuilder::new();
    record.hold(&first());
    record.holds += 1;
    record.step(150, 2, Call::Acquire, Kind::Invoke);
    record.step(350, 2, Call::Acquire, Kind::Info);
    let operations = {
        record.history.sort();
        record.history.operations()
    };
    assert!(
        operations
            .iter()
            .any(|o| o.process == 2 && o.kind == Kind::Info)
    );
    assert_eq!(record.history.held_locks().len(), 1);
    record.breaks_nothing();
}

/// Behind Sentinels and in a cluster, a fault at one process excuses no other process.
#[test]
fn idle_waiter_of_a_topology_is_found() {
    let waiting = |topology| {
        let mut record = RecordBuilder::new();
        record.history.topology = Some(topology);
        let requested = record.wait(3, 1_000, 6_000).acquisition;
        let first = record.history.events.iter_mut();
        for event in first.filter(|event| event.acquisition == requested) {
            event.limit = event.limit.map(|_| ms(10_000));
        }
        record.free(1_500, 2_900);
        record
    };
    for topology in Topology::ALL {
        waiting(topology).breaks_inside(Check::Idle);
        let mut other = waiting(topology);
        other.fault(1_000, 2_600, Assumption::Inside);
        other.history.faults[0].slots = vec![2];
        other.breaks_inside(Check::Idle);
        // A majority of a quorum had no lock, but some server had one.
        let mut divided = waiting(topology);
        divided.history.samples[20].state = KeyState::Divided;
        divided.breaks_nothing();
    }
}

#[test]
fn report_without_samples_says_what_was_not_checked() {
    let mut record = RecordBuilder::new();
    record.hold(&first());
    record.write(10, 1);
    record.history.sort();
    let report = |record: &RecordBuilder| {
        let mut report = Report::new(1, Dialect::Native);
        report.add(String::new(), &record.history);
        report.to_string()
    };
    let without = report(&record);
    assert!(without.contains("n/a   6."), "{without}");
    assert!(without.contains("causes not checked"), "{without}");
    record.free(1_000, 1_100);
    let with = report(&record);
    assert!(with.contains("pass  6."), "{with}");
    assert!(!with.contains("not checked"), "{with}");
}
