//! Losses and waits: what is late, and what excuses it.

use super::*;

#[test]
fn late_or_missing_report_of_a_loss_is_found() {
    let lost = |lost: Option<u64>| {
        let mut held = FIRST;
        (held.released, held.lost) = (None, lost);
        history(&[held])
    };
    accepts(&lost(Some(1_250)));
    accepts(&lost(Some(600)));
    finds(&lost(Some(1_251)), Check::Losses);
    finds(&lost(None), Check::Losses);
    let strict = Checker::new().tolerance(Duration::from_millis(249));
    assert!(!strict.check(&lost(Some(1_250))).is_ok());
    // A holder that released in the meantime needs no report.
    let mut released = FIRST;
    released.released = Some(1_250);
    accepts(&history(&[released]));
    // The run ended before the report was due.
    let mut ended = lost(None);
    ended.ended = Some(ms(1_250));
    accepts(&ended);
    // The process was killed.
    let mut killed = lost(None);
    killed.deaths.insert(1, ms(1_200));
    accepts(&killed);
}

#[test]
fn stalled_process_is_excused_for_a_late_loss_and_a_long_wait() {
    let mut held = FIRST;
    (held.released, held.lost) = (None, Some(3_000));
    let stalled = |process, from, to| {
        let mut history = history(&[held]);
        history.stalls.push(Stall::new(process, ms(from), ms(to)));
        history
    };
    accepts(&stalled(1, 900, 2_990));
    finds(&stalled(2, 900, 2_990), Check::Losses);
    finds(&stalled(1, 200, 700), Check::Losses);
    // A stall excuses no more than its own time.
    finds(&stalled(1, 950, 1_100), Check::Losses);

    let mut waits = history(&[SECOND]);
    waits.events[0].limit = Some(ms(10));
    finds(&waits, Check::Waits);
    waits.stalls.push(Stall::new(2, ms(300), ms(340)));
    finds(&waits, Check::Waits);
    waits.stalls.push(Stall::new(2, ms(340), ms(390)));
    accepts(&waits);
}

#[test]
fn death_excuses_only_what_came_after_it() {
    let mut wait = Event::new(ms(1_000), 3, 1, KEY, Call::Acquire, Kind::Invoke);
    wait.limit = Some(ms(500));
    let died = |at: u64| {
        let mut history = both(|_, _| {});
        history.events.push(wait.clone());
        history.deaths.insert(3, ms(at));
        history
    };
    accepts(&died(1_750));
    finds(&died(1_751), Check::Waits);
}

#[test]
fn lock_that_is_valid_after_its_loss_is_found() {
    let mut held = FIRST;
    held.lost = Some(300);
    let mut history = history(&[held]);
    let mut seen = Event::new(ms(350), 1, 1, KEY, Call::Acquire, Kind::Seen);
    seen.valid_until = Some(ms(1_100).into());
    history.events.push(seen);
    finds(&history, Check::Losses);
}

#[test]
fn long_wait_is_found_unless_it_was_dropped() {
    let waited = |to: Option<u64>, kind| {
        let mut history = both(|_, _| {});
        let mut invoke = Event::new(ms(1_000), 3, 1, KEY, Call::Acquire, Kind::Invoke);
        invoke.limit = Some(ms(500));
        history.events.push(invoke);
        let end = to.map(|to| Event::new(ms(to), 3, 1, KEY, Call::Acquire, kind));
        history.events.extend(end);
        history
    };
    accepts(&waited(Some(1_750), Kind::Fail));
    let violation = finds(&waited(Some(1_751), Kind::Fail), Check::Waits);
    assert!(
        violation.to_string().contains("limit of 500000 us"),
        "{violation}"
    );
    accepts(&waited(Some(9_000), Kind::Dropped));
    // An acquire without an end still waits.
    finds(&waited(None, Kind::Fail), Check::Waits);
}
