//! Tickets, which one caller alone may resume.

use std::collections::HashMap;

use lock_testing::{Call, HeldLock};

use super::{Check, Violation, is_outside};
use crate::history::{History, RESUMES};

/// Finds tickets that two callers have resumed, and resumes whose token is not greater than the ticket's.
pub(super) fn second_resumes(history: &History, holds: &[HeldLock]) -> Vec<Violation> {
    let holds: HashMap<_, _> = holds
        .iter()
        .map(|held| ((held.process, held.acquisition), held))
        .collect();
    let mut first: HashMap<(&str, u64), &HeldLock> = HashMap::new();
    let mut found = Vec::new();
    for resume in history.operations() {
        let note = resume.note.as_deref().unwrap_or_default();
        let ticket = note
            .strip_prefix(RESUMES)
            .and_then(|token| token.parse().ok());
        let held = holds.get(&(resume.process, resume.acquisition));
        let (Some(ticket), Some(held), Call::Acquire) = (ticket, held, resume.call) else {
            continue;
        };
        let mut violation = |from, text: &str| {
            let to = held.granted;
            let violation = Violation::new(Check::Tokens, &held.key, from, to, text);
            found.push(violation.excused_by(is_outside(&history.faults, from, to)));
        };
        if held.token.is_none_or(|token| token <= ticket) {
            let text =
                format!("{held} resumed a ticket with the token {ticket}, which is not less");
            violation(held.requested, &text);
        }
        if let Some(other) = first.insert((&held.key, ticket), held) {
            let text = format!("{held} resumed a ticket that {other} had resumed");
            violation(other.requested.min(held.requested), &text);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use lock_testing::{Event, Kind};

    use super::*;

    /// An acquisition that resumes the ticket with the token 10, and gets this one.
    fn resume(acquisition: u64, token: u64) -> [Event; 2] {
        let event = |at, kind| Event::new(at, 1, acquisition, "k", Call::Acquire, kind);
        let mut invoke = event(acquisition, Kind::Invoke);
        invoke.note = Some(format!("{RESUMES}10").into());
        let mut granted = event(acquisition + 1, Kind::Ok);
        granted.token = Some(token);
        granted.valid_until = Some((acquisition + 2).into());
        [invoke, granted]
    }

    fn texts(events: impl IntoIterator<Item = [Event; 2]>) -> Vec<String> {
        let mut history = History::default();
        history.record.events.extend(events.into_iter().flatten());
        let holds = history.held_locks();
        let found = second_resumes(&history, &holds).into_iter();
        found.map(|violation| violation.text).collect()
    }

    #[test]
    fn ticket_that_two_have_resumed_is_found() {
        assert_eq!(texts([resume(10, 11)]), [""; 0]);
        let found = texts([resume(10, 11), resume(20, 12)]);
        assert!(
            matches!(&*found, [text] if text.contains("had resumed")),
            "{found:?}"
        );
        let found = texts([resume(10, 10)]);
        assert!(
            matches!(&*found, [text] if text.contains("not less")),
            "{found:?}"
        );
    }
}
