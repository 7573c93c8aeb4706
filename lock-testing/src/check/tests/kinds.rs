//! Readers, writers and permits.

use lock_protocol::kind::Kind as LockKind;

use super::*;

fn of_kinds(
    first: LockKind,
    second: LockKind,
    change: impl FnOnce(&mut Held, &mut Held),
) -> History {
    // The second holder acquires while the first one holds, with the token of the group.
    let mut history = both(|first, second| {
        (second.requested, second.granted, second.token) = (150, 200, first.token);
        change(first, second);
    });
    let mut kinds = [first, second].into_iter();
    for event in &mut history.events {
        if (event.call, event.kind) == (Call::Acquire, Kind::Ok) {
            event.lock_kind = kinds.next().unwrap();
        }
    }
    history
}

const fn permits(of: u32, weight: u32) -> LockKind {
    LockKind::Permits { of, weight }
}

#[test]
fn readers_that_overlap_with_one_token_are_accepted() {
    accepts(&of_kinds(LockKind::Read, LockKind::Read, |_, _| {}));
}

#[test]
fn readers_of_different_groups_that_overlap_are_found() {
    let history = of_kinds(LockKind::Read, LockKind::Read, |_, second| {
        second.token = Some(11);
    });
    finds(&history, Check::Exclusion);
}

#[test]
fn writer_beside_a_reader_is_found() {
    let later = |_: &mut Held, second: &mut Held| second.token = Some(11);
    finds(
        &of_kinds(LockKind::Read, LockKind::Exclusive, later),
        Check::Exclusion,
    );
    finds(
        &of_kinds(LockKind::Exclusive, LockKind::Read, later),
        Check::Exclusion,
    );
    finds(
        &of_kinds(LockKind::Read, permits(4, 1), later),
        Check::Exclusion,
    );
    finds(
        &of_kinds(permits(8, 1), permits(4, 1), later),
        Check::Exclusion,
    );
}

#[test]
fn permit_too_many_is_found_with_the_weights() {
    accepts(&of_kinds(permits(4, 3), permits(4, 1), |_, _| {}));
    let history = of_kinds(permits(4, 3), permits(4, 2), |_, _| {});
    let violation = finds(&history, Check::Exclusion);
    assert_eq!((violation.from, violation.to), (ms(200), ms(400)));
    let text = violation.to_string();
    assert!(text.contains("had 5 permits for 200000 us"), "{text}");
    assert!(
        text.contains("`k`") && text.contains("2 of 4 permits"),
        "{text}"
    );
}

#[test]
fn permit_after_a_release_is_accepted() {
    let history = of_kinds(permits(2, 2), permits(2, 2), |_, second| {
        second.granted = 401;
    });
    accepts(&history);
}

#[test]
fn token_of_a_group_in_a_later_group_is_found() {
    // A writer with the token of the readers before it.
    let history = of_kinds(LockKind::Read, LockKind::Exclusive, |_, second| {
        (second.requested, second.granted) = (410, 420);
    });
    finds(&history, Check::Tokens);
}

#[test]
fn reader_that_joins_an_earlier_group_after_a_later_grant_is_found() {
    let history = of_kinds(LockKind::Read, LockKind::Read, |_, second| {
        (second.requested, second.granted, second.token) = (410, 420, Some(9));
    });
    finds(&history, Check::Tokens);
}
