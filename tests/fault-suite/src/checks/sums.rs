//! Transfers between balances.

use std::collections::{BTreeMap, HashMap};

use lock_testing::{HeldLock, Validity};

use super::{Check, Violation, is_outside};
use crate::history::History;
use crate::resource::{FIRST_BALANCE, Posting};

/// Finds a sum of the balances that differs from the sum of the accepted postings of incomplete transfers, and
/// postings that the resource refused although the set was valid.
///
/// A set that died between its two postings, or that was lost there, leaves one of them. All other transfers
/// keep the sum.
pub(super) fn wrong_sums(history: &History, holds: &[HeldLock]) -> Vec<Violation> {
    let mut transfers: BTreeMap<(u32, u64), Vec<&Posting>> = BTreeMap::new();
    for posting in &history.postings {
        let id = (posting.process, posting.transfer);
        transfers.entry(id).or_default().push(posting);
    }
    let accepted = |postings: &[&Posting]| {
        let accepted = postings.iter().filter(|posting| posting.is_accepted);
        accepted
            .map(|posting| difference(posting.before, posting.after))
            .sum::<i128>()
    };
    let expected: i128 = transfers.values().map(|postings| accepted(postings)).sum();
    let balances = history.balances.values();
    let sum: i128 = balances
        .map(|balance| difference(FIRST_BALANCE, *balance))
        .sum();
    let mut found = Vec::new();
    let ended = history.end();
    if sum != expected {
        let text = format!(
            "the sum changed by {sum}; transfers that were not completed explain {expected}"
        );
        found.push(Violation::new(Check::Sums, "", 0, ended, &text));
    }
    let holds: HashMap<_, _> = holds
        .iter()
        .map(|held| ((held.process, held.acquisition), held))
        .collect();
    for posting in history
        .postings
        .iter()
        .filter(|posting| !posting.is_accepted)
    {
        let Some(held) = holds.get(&(posting.process, posting.acquisition)) else {
            continue;
        };
        if held.end() > Validity::Until(posting.at) {
            let text = format!("{held} was refused, although it was valid");
            let violation =
                Violation::new(Check::Sums, &posting.key, held.granted, posting.at, &text);
            found.push(violation.excused_by(is_outside(
                &history.faults,
                held.requested,
                posting.at,
            )));
        }
    }
    found
}

fn difference(before: u64, after: u64) -> i128 {
    i128::from(after) - i128::from(before)
}
