//! Losses that have no cause, or that came without a warning.

use lock_testing::{Event, HeldLock, Nanos, nanos};

use super::{Check, RECOVERY, Violation};
use crate::history::{Fault, History, LONGEST_TTL, UNWARNED};

pub(super) fn losses_without_a_cause(history: &History, holds: &[HeldLock]) -> Vec<Violation> {
    let mut found = Vec::new();
    for hold in holds {
        if let Some(lost) = hold.lost
            && has_no_cause(history, hold, lost)
        {
            let text = format!("{hold} was lost, but no fault was active");
            let (key, from) = (&hold.key, hold.valid_until.lease_end().unwrap_or(lost));
            found.push(Violation::new(Check::Loss, key, from, lost, &text));
        }
    }
    found
}

/// Locks that expired while their holder could see that, and that were not at risk before.
pub(super) fn losses_without_a_warning(history: &History) -> Vec<Violation> {
    let unwarned = |event: &&Event| event.note.as_deref() == Some(UNWARNED);
    let events = history.events.iter().filter(unwarned);
    let violation = |event: &Event| {
        let text = format!("acquisition {} {UNWARNED}", event.acquisition);
        Violation::new(Check::Loss, &event.key, event.at, event.at, &text)
    };
    events.map(violation).collect()
}

/// Returns whether a held lock was lost without a cause. The process ran, the server answered, and
/// the active faults only caused load.
fn has_no_cause(history: &History, hold: &HeldLock, lost: Nanos) -> bool {
    let ended = hold.valid_until.lease_end().unwrap_or(lost);
    let from = ended.min(lost).saturating_sub(nanos(LONGEST_TTL));
    let has_broken = |fault: &Fault| {
        let overlaps = fault.from <= lost && from <= fault.to + nanos(RECOVERY);
        overlaps && fault.disturbs(hold.process) && !fault.is_load
    };
    !history.faults.iter().any(has_broken)
        && !history.stalled(hold.process, from, lost)
        && history.answered(&hold.key, from, lost)
}
