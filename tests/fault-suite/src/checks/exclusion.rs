//! Overlapping holders, and fencing tokens that do not grow.

use std::collections::BTreeMap;

use super::{Check, Violation, by_key, is_outside};
use crate::history::{HeldLock, History};

pub(super) fn overlaps(history: &History, holds: &[HeldLock]) -> Vec<Violation> {
    let mut found = Vec::new();
    for (key, holds) in by_key(holds) {
        let mut last: Option<&HeldLock> = None;
        for hold in holds.into_iter().filter(|hold| hold.was_ever_valid()) {
            if let Some(before) = last
                && hold.ok < before.end()
            {
                let to = before.end().min(hold.end());
                let text = format!(
                    "{before} and {hold} both held it for {} us",
                    (to - hold.ok) / 1000,
                );
                let outside = is_outside(&history.faults, before.ok, hold.ok);
                let violation = Violation::new(Check::Exclusion, key, hold.ok, to, text);
                found.push(violation.excused_by(outside));
            }
            if last.is_none_or(|last| last.end() < hold.end()) {
                last = Some(hold);
            }
        }
    }
    found
}

pub(super) fn disordered_tokens(history: &History, holds: &[HeldLock]) -> Vec<Violation> {
    let mut found = Vec::new();
    for (key, holds) in by_key(holds) {
        let mut seen: BTreeMap<Option<u64>, &HeldLock> = BTreeMap::new();
        for hold in &holds {
            if let Some(other) = seen.insert(hold.token, hold) {
                let text = format!("{other} and {hold} received the same token");
                let violation = Violation::new(Check::Tokens, key, other.ok, hold.ok, text);
                found.push(violation);
            }
        }
        let mut by_request = holds.clone();
        by_request.sort_by_key(|hold| hold.requested);
        let mut earlier = holds.iter().peekable();
        let mut highest: Option<&HeldLock> = None;
        for hold in by_request {
            while let Some(done) = earlier.next_if(|done| done.ok < hold.requested) {
                if highest.is_none_or(|highest| highest.token < done.token) {
                    highest = Some(done);
                }
            }
            if let Some(highest) = highest
                && hold.token < highest.token
            {
                let text = format!("{hold} was granted after {highest}");
                found.push(Violation::new(
                    Check::Tokens,
                    key,
                    highest.ok,
                    hold.ok,
                    text,
                ));
            }
        }
        // Two held locks that were both valid when their holders learned of them are ordered too.
        // This also applies when the second acquisition began before the first was granted.
        let mut valid = holds.iter().filter(|hold| hold.was_ever_valid());
        let mut last = valid.next();
        for hold in valid {
            if let Some(before) = last
                && hold.token < before.token
                && before.ok >= hold.requested
            {
                let text = format!("{before} held the lock before {hold}");
                let outside = is_outside(&history.faults, hold.requested, before.ok);
                let violation = Violation::new(Check::Tokens, key, before.ok, hold.ok, text);
                found.push(violation.excused_by(outside));
            }
            last = Some(hold);
        }
    }
    found
}

/// A dialect without fencing must give no token.
pub(super) fn unexpected_tokens(holds: &[HeldLock]) -> Vec<Violation> {
    let has_one = holds.iter().filter(|hold| hold.token.is_some());
    has_one
        .map(|hold| {
            let text = format!("{hold} received a token");
            Violation::new(Check::Tokens, &hold.key, hold.ok, hold.ok, text)
        })
        .collect()
}
