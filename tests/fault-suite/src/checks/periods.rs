//! Work that is done once in a period.

use std::collections::HashSet;

use lock_testing::{Call, HeldLock, Kind, nanos};

use super::{Check, LATE, Violation, by_key, is_outside};
use crate::history::{COMPLETES, History, PERIOD};

/// Finds holders that got a lock although its work was done for a period that was not over.
///
/// The server counts the period from its own grant, which came after the request of the holder that succeeded, and
/// ends it before it grants the lock again. So both moments on the clock of the clients are further apart.
pub(super) fn repeated_work(history: &History, holds: &[HeldLock]) -> Vec<Violation> {
    let completed: HashSet<_> = history
        .events
        .iter()
        .filter(|event| (event.call, event.kind) == (Call::Release, Kind::Invoke))
        .filter(|event| event.note.as_deref() == Some(COMPLETES))
        .map(|event| (event.process, event.acquisition))
        .collect();
    // A success counts from the reply of the server.
    let is_confirmed = |held: &&HeldLock| {
        completed.contains(&(held.process, held.acquisition))
            && matches!(held.release_done, Some((_, Kind::Ok)))
    };
    let mut found = Vec::new();
    for (key, holds) in by_key(holds) {
        for done in holds.iter().copied().filter(is_confirmed) {
            let ends = done.requested + nanos(PERIOD.saturating_sub(LATE));
            let again = holds
                .iter()
                .filter(|held| (done.granted + 1..ends).contains(&held.granted));
            for again in again {
                let text = format!("{again} got the lock, although {done} has done its work");
                let (from, to) = (done.granted, again.granted);
                let violation = Violation::new(Check::Periods, key, from, to, &text);
                found.push(violation.excused_by(is_outside(&history.faults, from, to)));
            }
        }
    }
    found
}
