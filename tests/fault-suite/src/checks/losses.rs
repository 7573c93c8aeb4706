//! Losses that are reported late or never, or that have no cause.

use super::{Check, LATE, RECOVERY, Violation};
use crate::event::{Nanos, nanos};
use crate::history::{Fault, HeldLock, History, LONGEST_TTL};

pub(super) fn unreported_losses(history: &History, holds: &[HeldLock]) -> Vec<Violation> {
    let late = nanos(LATE);
    let mut found = Vec::new();
    for hold in holds {
        let due = hold.until + late;
        let mut add = |to: Nanos, text: String| {
            found.push(Violation::new(Check::Loss, &hold.key, hold.until, to, text));
        };
        if hold.held_after_loss {
            let text = format!(
                "w{} was notified of its loss and held it again",
                hold.worker
            );
            add(due, text);
        }
        if let Some(lost) = hold.lost
            && has_no_cause(history, hold, lost)
        {
            add(lost, format!("{hold} was lost, but no fault was active"));
        }
        let given_up = hold.released.is_some_and(|released| released <= due);
        let in_time = hold.lost.is_some_and(|lost| lost <= due);
        let since = hold.until.saturating_sub(nanos(LONGEST_TTL));
        if given_up || in_time || history.ended <= due || history.stalled(hold.worker, since, due) {
            continue;
        }
        let text = match hold.lost {
            Some(lost) => format!(
                "{hold} was notified of its loss {} us after its deadline",
                (lost - hold.until) / 1000
            ),
            None => format!("{hold} was never notified of its loss"),
        };
        add(hold.lost.unwrap_or(due), text);
    }
    found
}

/// Returns whether a held lock was lost without a cause. The process ran, the server answered, and
/// the active faults only caused load.
pub(super) fn has_no_cause(history: &History, hold: &HeldLock, lost: Nanos) -> bool {
    let from = hold.until.min(lost).saturating_sub(nanos(LONGEST_TTL));
    let has_broken = |fault: &Fault| {
        let overlaps = fault.from <= lost && from <= fault.to + nanos(RECOVERY);
        overlaps && fault.disturbs(hold.worker) && !fault.is_load
    };
    !history.faults.iter().any(has_broken)
        && !history.stalled(hold.worker, from, lost)
        && history.answered(from, lost)
}
