//! Readers, permits and sets.

use fault_suite::checks::Check;
use fault_suite::history::{Assumption, COMPLETES, Observation};
use fault_suite::resource::{FIRST_BALANCE, Posting};
use lock_core::Kind as LockKind;
use lock_testing::{Access, AccessKind, Call, Kind};

use super::record::{Held, KEY, RecordBuilder, both, first, ms, second};

/// Two held locks of these kinds, both from 110 to 300 ms, with one token.
fn together(first: LockKind, second: LockKind) -> RecordBuilder {
    let mut record = both(|first, second| {
        for held in [&mut *first, &mut *second] {
            (held.requested, held.ok, held.released) = (100, 110, Some(300));
        }
        second.token = first.token;
    });
    let mut kinds = [first, second].into_iter();
    for event in &mut record.history.events {
        if (event.call, event.kind) == (Call::Acquire, Kind::Ok) {
            event.lock_kind = kinds.next().unwrap();
        }
    }
    record
}

/// Adds an access of the first acquisition of a worker.
fn access(record: &mut RecordBuilder, at: u64, worker: u32, part: u64, kind: AccessKind) {
    let mut access = Access::new(ms(at), KEY, worker, worker.into(), Some(1), kind);
    access.resource = part;
    record.history.accesses.push(access);
}

const fn wrote(value: u64) -> AccessKind {
    AccessKind::Write { value }
}

const READ: AccessKind = AccessKind::Read;

const fn permits(of: u32, weight: u32) -> LockKind {
    LockKind::Permits { of, weight }
}

/// Two sections that the resource sees from 120 to 200 ms.
fn present(first: LockKind, second: LockKind) -> RecordBuilder {
    let mut record = together(first, second);
    for (at, worker) in [(120, 1), (121, 2), (199, 1), (200, 2)] {
        access(&mut record, at, worker, 0, READ);
    }
    record
}

fn finds_presence(record: RecordBuilder) {
    let found = record.found();
    assert!(
        found.iter().any(|found| found.check == Check::Presence),
        "{found:?}"
    );
}

#[test]
fn holders_that_the_resource_saw_together_are_found() {
    present(LockKind::Read, LockKind::Read).breaks_nothing();
    present(permits(4, 3), permits(4, 1)).breaks_nothing();
    finds_presence(present(LockKind::Read, LockKind::Exclusive));
    finds_presence(present(permits(4, 3), permits(4, 2)));
    finds_presence(present(permits(4, 1), permits(8, 1)));
}

#[test]
fn access_after_the_end_of_the_lease_is_no_presence() {
    let mut record = both(|first, _| {
        (first.until, first.released, first.lost) = (300, None, Some(310));
    });
    for (at, worker) in [(120, 1), (450, 2), (460, 1), (470, 2)] {
        access(&mut record, at, worker, 0, READ);
    }
    record.breaks_nothing();
}

/// A writer at 110 to 300 ms and a reader at 402 to 500 ms, as the pure checks see them.
fn pair(accesses: &[(u64, u32, u64, AccessKind)]) -> RecordBuilder {
    let mut record = both(|_, _| {});
    for (at, worker, part, kind) in accesses {
        access(&mut record, *at, *worker, *part, *kind);
    }
    record
}

#[test]
fn half_written_pair_is_found_unless_its_writer_never_completes_it() {
    pair(&[
        (120, 1, 0, wrote(1)),
        (130, 1, 1, wrote(1)),
        (410, 2, 0, READ),
        (420, 2, 1, READ),
    ])
    .breaks_nothing();
    // The writer died.
    pair(&[
        (120, 1, 0, wrote(1)),
        (410, 2, 0, READ),
        (420, 2, 1, READ),
        (430, 2, 1, wrote(1)),
    ])
    .breaks_nothing();
    let half = [
        (120, 1, 0, wrote(1)),
        (410, 2, 0, READ),
        (420, 2, 1, READ),
        (430, 1, 1, wrote(1)),
    ];
    let found = pair(&half).found();
    assert!(
        found.iter().any(|found| found.check == Check::Pairs),
        "{found:?}"
    );
    // Both values changed between the two reads.
    let raced = [
        (410, 2, 0, READ),
        (411, 1, 0, wrote(1)),
        (412, 1, 1, wrote(1)),
        (420, 2, 1, READ),
    ];
    let found = pair(&raced).found();
    assert!(
        found.iter().any(|found| found.check == Check::Pairs),
        "{found:?}"
    );
}

/// A side of the transfer 1 of the first holder, at 200 ms.
fn posting<'a>(
    record: &'a mut RecordBuilder,
    account: &str,
    before: u64,
    after: u64,
) -> &'a mut Posting {
    record.history.postings.push(Posting {
        at: ms(200),
        key: account.to_owned(),
        process: 1,
        acquisition: 1,
        transfer: 1,
        before: FIRST_BALANCE + before,
        after: FIRST_BALANCE + after,
        is_accepted: true,
    });
    record.history.postings.last_mut().unwrap()
}

#[test]
fn wrong_sum_is_found_unless_an_incomplete_transfer_explains_it() {
    let with = |balances: [u64; 2]| {
        let mut record = both(|_, _| {});
        let named = ["a", "b"].map(ToOwned::to_owned).into_iter();
        let balances = balances.map(|balance| FIRST_BALANCE + balance);
        record.history.balances = named.zip(balances).collect();
        record
    };
    let mut complete = with([0, 10]);
    posting(&mut complete, "a", 10, 0);
    posting(&mut complete, "b", 0, 10);
    // The account `a` had 10 more before, which no posting explains.
    complete.breaks_inside(Check::Sums);
    let mut half = with([10, 0]);
    posting(&mut half, "a", 0, 10);
    half.breaks_nothing();
    // The second transfer overwrote the first one.
    let mut lost = with([5, 0]);
    posting(&mut lost, "a", 0, 10);
    posting(&mut lost, "a", 0, 5);
    lost.breaks_inside(Check::Sums);
}

#[test]
fn refused_posting_of_a_valid_set_is_found() {
    let refused = |change: fn(&mut Held)| {
        let mut record = both(|first, _| change(first));
        posting(&mut record, KEY, 0, 10).is_accepted = false;
        record
    };
    refused(|_| {}).breaks_inside(Check::Sums);
    // Its holder had begun to release it.
    refused(|first| first.released = Some(199)).breaks_nothing();
    let mut outside = refused(|_| {});
    outside.fault(100, 195, Assumption::Outside);
    assert_eq!(outside.breaks(Check::Sums).assumption, Assumption::Outside);
}

/// A reader, a writer whose grant the server loses, and a reader that joins the first one's group.
fn restored_group(third: LockKind) -> RecordBuilder {
    let mut record = RecordBuilder::new();
    record.hold(&Held {
        released: Some(300),
        ..first()
    });
    record.hold(&Held {
        requested: 310,
        ok: 320,
        released: Some(400),
        ..second()
    });
    record.hold(&Held {
        requested: 450,
        ok: 460,
        released: Some(500),
        worker: 3,
        token: Some(10),
        ..second()
    });
    let mut kinds = [LockKind::Read, LockKind::Exclusive, third].into_iter();
    for event in &mut record.history.events {
        if (event.call, event.kind) == (Call::Acquire, Kind::Ok) {
            event.lock_kind = kinds.next().unwrap();
        }
    }
    record
}

#[test]
fn lower_token_of_a_restored_group_is_outside_the_guarantees() {
    let mut restored = restored_group(LockKind::Read);
    restored.fault(410, 440, Assumption::Outside);
    assert_eq!(
        restored.breaks(Check::Tokens).assumption,
        Assumption::Outside
    );
    restored_group(LockKind::Read).breaks_inside(Check::Tokens);
    // A new group has a higher token, also after the fault.
    let mut writer = restored_group(LockKind::Exclusive);
    writer.fault(410, 440, Assumption::Outside);
    assert!(
        writer.found().iter().any(|found| {
            found.check == Check::Tokens && found.assumption == Assumption::Inside
        })
    );
}

fn observed(tokens: [(u64, u32, u64); 4]) -> RecordBuilder {
    let mut record = both(|_, _| {});
    record.history.observations = tokens
        .map(|(at, worker, token)| Observation {
            at: ms(at),
            worker,
            key: KEY.to_owned(),
            token,
        })
        .into();
    record
}

/// An observer that goes back is found. Two processes may see a lock at different times.
#[test]
fn older_token_after_a_newer_one_is_found() {
    observed([(100, 1, 7), (150, 2, 6), (200, 1, 7), (300, 2, 8)]).breaks_nothing();
    let goes_back = [(100, 1, 7), (150, 2, 8), (200, 1, 6), (300, 1, 8)];
    observed(goes_back).breaks_inside(Check::Tokens);
    let mut restored = observed(goes_back);
    restored.fault(140, 160, Assumption::Outside);
    assert_eq!(
        restored.breaks(Check::Tokens).assumption,
        Assumption::Outside
    );
}

#[test]
fn observation_is_read_as_it_was_written() {
    let [seen, ..] = &observed([(100, 1, 7); 4]).history.observations[..] else {
        panic!("four were made");
    };
    let line = seen.line();
    assert_eq!(Observation::parse(line.trim_end()).as_ref(), Some(seen));
    assert_eq!(Observation::parse("1 2 a"), None);
}

/// A job that succeeds, and one that gets its lock at this time.
fn jobs(again: u64) -> RecordBuilder {
    let mut record = both(|first, second| {
        (first.requested, first.ok, first.released) = (100, 110, Some(300));
        (second.requested, second.ok) = (again - 10, again);
        (second.until, second.released) = (again + 3_000, Some(again + 100));
    });
    let begins = |event: &&mut lock_testing::Event| {
        (event.process, event.call, event.kind) == (1, Call::Release, Kind::Invoke)
    };
    let released = record.history.events.iter_mut().find(begins);
    released.expect("the first one is released").note = Some(COMPLETES.into());
    record
}

#[test]
fn work_that_is_repeated_within_its_period_is_found() {
    jobs(1_500).breaks_inside(Check::Periods);
    // The period began before the grant.
    jobs(2_100).breaks_nothing();
    let mut outside = jobs(1_500);
    outside.fault(400, 500, Assumption::Outside);
    assert_eq!(
        outside.breaks(Check::Periods).assumption,
        Assumption::Outside
    );
    // The server may not know of it.
    let mut unconfirmed = jobs(1_500);
    let replies = |event: &lock_testing::Event| {
        (event.process, event.call, event.kind) == (1, Call::Release, Kind::Ok)
    };
    unconfirmed.history.events.retain(|event| !replies(event));
    unconfirmed.breaks_nothing();
}
