//! What observers said of the holders.

use std::collections::BTreeMap;

use super::{Check, Violation, has_lost_data, was_divided};
use crate::history::{History, Observation};

/// Returns the observations of an older token after a newer one. The observers of a process share their reads, which
/// come one after the other, so there the order is a promise.
pub(super) fn older_tokens(history: &History) -> Vec<Violation> {
    let mut newest: BTreeMap<(u32, &str), &Observation> = BTreeMap::new();
    let mut found = Vec::new();
    for seen in &history.observations {
        let place = (seen.worker, seen.key.as_str());
        let Some(earlier) = newest.get(&place).filter(|it| it.token > seen.token) else {
            newest.insert(place, seen);
            continue;
        };
        let text = format!(
            "an observer of process {} saw the token {} after {}",
            seen.worker, seen.token, earlier.token
        );
        let is_excused = has_lost_data(&history.faults, earlier.at, seen.at)
            || was_divided(&history.faults, earlier.at)
            || was_divided(&history.faults, seen.at);
        let violation = Violation::new(Check::Tokens, &seen.key, earlier.at, seen.at, &text);
        found.push(violation.excused_by(is_excused));
    }
    found
}
