//! Losses of held locks.

use fault_suite::checks::Check;
use fault_suite::history::{Assumption, UNWARNED};
use lock_testing::{Call, Kind};

use super::record::{Held, RecordBuilder, first, ms};

#[test]
fn late_or_missing_loss_notification_is_found() {
    let lost_at = |lost| Held {
        released: None,
        lost,
        ..first()
    };
    let record = |held: &Held| {
        let mut record = RecordBuilder::new();
        record.hold(held);
        record
    };
    record(&lost_at(Some(1_249))).breaks_nothing();
    record(&lost_at(Some(600))).breaks_nothing();
    record(&lost_at(Some(1_251))).breaks_inside(Check::Loss);
    record(&lost_at(None)).breaks_inside(Check::Loss);
    // A holder that released in the meantime needs no notification.
    let mut given_up = first();
    given_up.released = Some(1_200);
    record(&given_up).breaks_nothing();
}

#[test]
fn loss_without_a_fault_is_found() {
    let lost = || {
        let mut record = RecordBuilder::new();
        record.free(0, 2_000);
        record.hold(&Held {
            released: None,
            lost: Some(900),
            ..first()
        });
        record
    };
    lost().breaks_inside(Check::Loss);
    // Load is no excuse.
    let mut loaded = lost();
    loaded.fault(300, 800, Assumption::Inside);
    loaded.history.faults[0].is_load = true;
    loaded.breaks_inside(Check::Loss);

    let mut broken = lost();
    broken.fault(300, 800, Assumption::Inside);
    broken.breaks_nothing();
    let mut another = lost();
    another.fault(300, 800, Assumption::Inside);
    another.history.faults[0].slots = vec![2];
    another.breaks_inside(Check::Loss);
    let mut stalled = lost();
    stalled.stall(1, 300, 800);
    stalled.breaks_nothing();
    let mut silent = lost();
    silent.history.samples.retain(|sample| {
        let stands_still = ms(200)..ms(600);
        !stands_still.contains(&sample.from)
    });
    silent.breaks_nothing();
}

#[test]
fn late_loss_notification_of_a_stalled_process_is_excused() {
    let mut record = RecordBuilder::new();
    record.hold(&Held {
        released: None,
        lost: Some(3_000),
        ..first()
    });
    record.stall(1, 900, 2_990);
    record.breaks_nothing();

    let mut killed = RecordBuilder::new();
    killed.hold(&Held {
        released: None,
        ..first()
    });
    killed.history.deaths.insert(1, ms(600));
    killed.breaks_nothing();

    let mut another = RecordBuilder::new();
    another.hold(&Held {
        released: None,
        lost: Some(3_000),
        ..first()
    });
    another.stall(2, 900, 2_990);
    another.breaks_inside(Check::Loss);

    // A stall excuses no more than its own time.
    let mut short = RecordBuilder::new();
    short.hold(&Held {
        released: None,
        lost: Some(3_000),
        ..first()
    });
    short.stall(1, 950, 1_100);
    short.breaks_inside(Check::Loss);
}

#[test]
fn held_lock_after_its_loss_is_found() {
    let mut record = RecordBuilder::new();
    record.hold(&Held {
        lost: Some(300),
        ..first()
    });
    record.step(350, 1, Call::Acquire, Kind::Seen).valid_until = Some(ms(1_100).into());
    record.breaks_inside(Check::Loss);
}

#[test]
fn expiry_without_a_warning_is_found() {
    let mut record = RecordBuilder::new();
    record.hold(&first());
    record.step(1_000, 1, Call::Renew, Kind::Seen).note = Some(UNWARNED.into());
    record.breaks_inside(Check::Loss);
}
