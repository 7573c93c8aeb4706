//! Small histories: each violation is found, and each legal history is accepted.

use std::time::{Duration, Instant};

use super::*;
use crate::event::{Access, AccessKind, Call, Event, Kind, Stall, Validity};

mod kinds;
mod lateness;

const KEY: &str = "k";

const fn ms(millis: u64) -> Nanos {
    millis * 1_000_000
}

/// A held lock without a violation, unless a test changes a field. Times are in milliseconds.
#[derive(Clone, Copy)]
struct Held {
    process: u32,
    token: Option<u64>,
    requested: u64,
    granted: u64,
    until: u64,
    released: Option<u64>,
    lost: Option<u64>,
}

const FIRST: Held = Held {
    process: 1,
    token: Some(10),
    requested: 90,
    granted: 100,
    until: 1_000,
    released: Some(400),
    lost: None,
};

const SECOND: Held = Held {
    process: 2,
    token: Some(11),
    requested: 95,
    granted: 402,
    until: 1_400,
    released: Some(500),
    lost: None,
};

fn step(history: &mut History, at: u64, held: &Held, call: Call, kind: Kind) {
    let event = Event::new(ms(at), held.process, 1, KEY, call, kind);
    history.events.push(event);
}

fn add(history: &mut History, held: &Held) {
    step(history, held.requested, held, Call::Acquire, Kind::Invoke);
    history.events.push(Event::granted(
        ms(held.granted),
        held.process,
        1,
        KEY,
        held.token,
        ms(held.until),
    ));
    if let Some(released) = held.released {
        step(history, released, held, Call::Release, Kind::Invoke);
        step(history, released + 1, held, Call::Release, Kind::Ok);
    }
    if let Some(lost) = held.lost {
        step(history, lost, held, Call::Lost, Kind::Ok);
    }
}

fn history(held: &[Held]) -> History {
    let mut history = History::new();
    for held in held {
        add(&mut history, held);
    }
    history.ended = Some(ms(60_000));
    history
}

fn both(change: impl FnOnce(&mut Held, &mut Held)) -> History {
    let (mut first, mut second) = (FIRST, SECOND);
    change(&mut first, &mut second);
    history(&[first, second])
}

#[track_caller]
fn accepts(history: &History) {
    Checker::new().check(history).assert_ok();
}

#[track_caller]
fn finds(history: &History, check: Check) -> Violation {
    let report = Checker::new().check(history);
    let [violation] = report.violations() else {
        panic!("not one violation: {report}");
    };
    assert_eq!(violation.check(), check, "{report}");
    violation.clone()
}

#[test]
fn sequential_holders_are_accepted_in_any_order_of_events() {
    let mut legal = both(|_, _| {});
    accepts(&legal);
    legal.events.reverse();
    // Events with the same time keep their order, and here all times differ.
    accepts(&legal);
}

#[test]
fn handover_at_the_same_moment_is_accepted() {
    accepts(&both(|_, second| second.granted = 400));
}

#[test]
fn overlap_is_found_with_its_length_and_an_excerpt() {
    let overlap = both(|_, second| second.granted = 399);
    let violation = finds(&overlap, Check::Exclusion);
    assert_eq!((violation.from, violation.to), (ms(399), ms(400)));
    let report = Checker::new().check(&overlap).to_string();
    assert!(
        report.contains("FAIL  only holders of one group are valid at once: 1 violations"),
        "{report}"
    );
    let text = "process 1 (acquisition 1, token 10) and process 2 (acquisition 1, token 11) \
                both held it for 1000 us";
    assert!(report.contains(text), "{report}");
    assert!(
        report.contains("+0 us  process 2, acquisition 1: acquire ok, token 11"),
        "{report}"
    );
}

#[test]
#[should_panic(expected = "both held it for 1000 us")]
fn assertion_panics_with_the_report() {
    accepts(&both(|_, second| second.granted = 399));
}

#[test]
#[should_panic(expected = "nothing was checked")]
fn assertion_panics_for_an_empty_history() {
    accepts(&History::new());
}

#[test]
fn overlap_with_a_holder_of_long_ago_is_found() {
    let mut endless = FIRST;
    (endless.until, endless.released) = (30_000, Some(29_000));
    let mut later = SECOND;
    let mut third = SECOND;
    (third.process, third.requested, third.granted) = (3, 600, 700);
    (third.token, third.until, third.released) = (Some(12), 1_000, Some(800));
    (later.until, later.released) = (1_000, Some(600));
    let report = Checker::new().check(&history(&[endless, later, third]));
    assert_eq!(report.found_by(Check::Exclusion).count(), 2, "{report}");
}

#[test]
fn overlap_with_a_renewed_lease_is_found() {
    let mut renewed = both(|first, second| {
        first.released = Some(1_600);
        (second.granted, second.until, second.released) = (1_500, 2_400, Some(2_000));
    });
    let mut seen = Event::new(ms(900), 1, 1, KEY, Call::Acquire, Kind::Seen);
    seen.valid_until = Some(ms(1_900).into());
    renewed.events.push(seen);
    finds(&renewed, Check::Exclusion);
}

#[test]
fn lock_without_an_end_is_valid_until_its_loss() {
    let lost_at = |lost: u64| {
        let mut history = both(|first, second| {
            first.released = None;
            (second.granted, second.until, second.released) = (5_000, 6_000, Some(5_500));
        });
        let grant = history
            .events
            .iter_mut()
            .find(|event| event.token == Some(10));
        grant.unwrap().valid_until = Some(Validity::Endless);
        let mut loss = Event::new(ms(lost), 1, 1, KEY, Call::Lost, Kind::Ok);
        loss.valid_until = Some(ms(lost).into());
        history.events.push(loss);
        history
    };
    accepts(&lost_at(5_000));
    finds(&lost_at(5_001), Check::Exclusion);
}

#[test]
fn difference_of_the_clocks_is_tolerated() {
    let overlap = both(|_, second| second.granted = 390);
    let checker = |error| Checker::new().clock_error(Duration::from_millis(error));
    assert!(checker(10).check(&overlap).is_ok());
    assert!(!checker(9).check(&overlap).is_ok());
    let behind = both(|_, second| (second.requested, second.token) = (105, Some(9)));
    assert!(checker(1_000).check(&behind).is_ok());
    assert!(!checker(4).check(&behind).is_ok());
}

#[test]
fn token_is_compared_with_the_highest_of_all_earlier_grants() {
    let with_token = |held: Held, token, requested| Held {
        token: Some(token),
        requested,
        granted: requested + 10,
        until: requested + 90,
        released: Some(requested + 50),
        ..held
    };
    let held = [FIRST, with_token(SECOND, 8, 500), with_token(FIRST, 9, 600)];
    let report = Checker::new().check(&history(&held));
    let behind: Vec<_> = report
        .violations()
        .iter()
        .filter_map(|violation| match &violation.kind {
            ViolationKind::TokenBehindGrant { earlier, later } => {
                Some((earlier.token, later.token))
            }
            _ => None,
        })
        .collect();
    assert_eq!(behind, [(Some(10), Some(8)), (Some(10), Some(9))]);
}

#[test]
fn tokens_that_do_not_grow_are_found() {
    finds(&both(|_, second| second.token = Some(10)), Check::Tokens);
    let behind = both(|_, second| (second.requested, second.token) = (401, Some(9)));
    let violation = finds(&behind, Check::Tokens);
    assert!(matches!(
        violation.kind,
        ViolationKind::TokenBehindGrant { .. }
    ));
    // The second acquire began before the first grant, but held the lock after it.
    let behind = both(|_, second| second.token = Some(9));
    let violation = finds(&behind, Check::Tokens);
    assert!(matches!(
        violation.kind,
        ViolationKind::TokenBehindHolder { .. }
    ));
    // If the second was never valid, the time at which its holder learned of it proves nothing.
    accepts(&both(|_, second| {
        (second.token, second.until, second.released) = (Some(9), 402, Some(403));
    }));
}

#[test]
fn missing_and_unexpected_tokens_are_found() {
    let violation = finds(&both(|first, _| first.token = None), Check::Tokens);
    assert!(matches!(
        violation.kind,
        ViolationKind::MissingToken { times: 1, .. }
    ));
    let without = both(|first, second| (first.token, second.token) = (None, None));
    let violation = finds(&without, Check::Tokens);
    assert!(matches!(
        violation.kind,
        ViolationKind::MissingToken { times: 2, .. }
    ));
    let absent = Checker::new().fencing_tokens(FencingTokens::Absent);
    absent.check(&without).assert_ok();
    let report = absent.check(&both(|first, _| first.token = None));
    assert_eq!(report.violations().len(), 1, "{report}");
    assert!(
        !report
            .found_by(Check::Tokens)
            .next()
            .unwrap()
            .to_string()
            .is_empty()
    );
}

fn accesses(list: &[(u64, AccessKind)]) -> History {
    let mut history = both(|_, _| {});
    for (at, (token, kind)) in list.iter().enumerate() {
        let at = u64::try_from(at).unwrap();
        let access = Access::new(at, KEY, 1, 1, Some(*token), *kind);
        history.accesses.push(access);
    }
    history
}

const fn wrote(value: u64) -> AccessKind {
    AccessKind::Write { value }
}

#[test]
fn accepted_stale_access_is_found() {
    let (read, refused) = (AccessKind::Read, AccessKind::RefusedWrite);
    accepts(&accesses(&[
        (10, wrote(1)),
        (11, read),
        (10, refused),
        (11, wrote(2)),
    ]));
    let stale = accesses(&[(10, wrote(1)), (11, read), (10, wrote(2))]);
    let violation = finds(&stale, Check::StaleAccesses);
    assert!(
        violation.to_string().contains("token 10) after process 1"),
        "{violation}"
    );
    let stale = accesses(&[(11, read), (10, read)]);
    finds(&stale, Check::StaleAccesses);
}

#[test]
fn lost_update_is_found_once() {
    let lost = accesses(&[
        (10, wrote(1)),
        (11, wrote(2)),
        (12, wrote(2)),
        (13, wrote(3)),
    ]);
    let violation = finds(&lost, Check::LostUpdates);
    assert!(
        violation.to_string().contains("wrote 2 over 2"),
        "{violation}"
    );
    // Two resources are two counters.
    let mut two = accesses(&[(10, wrote(1)), (9, wrote(1))]);
    two.accesses[1].resource = 1;
    accepts(&two);
}

#[test]
fn check_without_data_does_not_pass() {
    let mut history = both(|_, _| {});
    let report = Checker::new().check(&history);
    report.assert_ok();
    for check in [Check::StaleAccesses, Check::LostUpdates, Check::Waits] {
        assert!(!report.has_data(check));
        let line = format!("no data  {}\n", check.title());
        assert!(report.to_string().contains(&line), "{report}");
    }
    history.events[0].limit = Some(ms(1_000));
    let access = Access::new(ms(150), KEY, 1, 1, Some(10), wrote(1));
    history.accesses.push(access);
    let report = Checker::new().check(&history).to_string();
    assert_eq!(report.matches("pass  ").count(), Check::ALL.len());
}

#[test]
fn check_that_is_left_out_finds_nothing() {
    let overlap = both(|_, second| second.granted = 399);
    let report = Checker::new().without(Check::Exclusion).check(&overlap);
    report.assert_ok();
    assert!(!report.to_string().contains(Check::Exclusion.title()));
}

/// The simulation of lock-core checks tens of thousands of events many times.
#[test]
fn checks_of_many_events_are_fast() {
    const ROUNDS: u32 = 40_000;
    let mut history = History::new();
    for round in 0..ROUNDS {
        let (at, process) = (u64::from(round) * 1_000_000, round % 50);
        let number = u64::from(round);
        let step = |at, call, kind| Event::new(at, process, number, KEY, call, kind);
        history.events.push(step(at, Call::Acquire, Kind::Invoke));
        let until = at + 500_000;
        let granted = Event::granted(at + 10, process, number, KEY, Some(number), until);
        history.events.push(granted);
        history
            .events
            .push(step(at + 400_000, Call::Release, Kind::Invoke));
        history.stalls.push(Stall::new(process, at, at + 5));
        let kind = wrote(number + 1);
        let access = Access::new(at + 20, KEY, process, number, Some(number), kind);
        history.accesses.push(access);
    }
    let started = Instant::now();
    Checker::new().check(&history).assert_ok();
    let took = started.elapsed();
    // A quadratic check takes minutes. This takes some 0.2 s without optimization.
    assert!(took < Duration::from_secs(10), "{took:?}");
}
