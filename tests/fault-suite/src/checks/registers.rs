//! Writes that the resource must not accept, and updates that are lost.

use std::collections::BTreeMap;

use super::{Check, Violation};
use crate::history::{Access, AccessKind};

pub(super) fn stale_accepts(accesses: &[Access]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut highest: BTreeMap<&str, &Access> = BTreeMap::new();
    for access in accesses {
        let is_accepted = matches!(access.kind, AccessKind::Read | AccessKind::Write { .. });
        if !is_accepted {
            continue;
        }
        let seen = highest.entry(&access.key).or_insert(access);
        if access.token < seen.token {
            let text = format!(
                "w{} was accepted with {:?} after w{} with {:?}",
                access.worker, access.token, seen.worker, seen.token
            );
            let violation = Violation::new(Check::Stale, &access.key, seen.at, access.at, text);
            found.push(violation);
        } else {
            *seen = access;
        }
    }
    found
}

/// Which of the resource's two counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// Refuses tokens lower than one it has seen.
    Fenced,
    /// Takes everything.
    Unfenced,
}

/// Updates that wrote another value than the number of updates until then: some were lost.
///
/// Of the unfenced counter this is no fault of the lock, which promises nothing to a resource that
/// does not look at tokens; it shows that the faults were hard enough to break something.
pub fn lost_updates(accesses: &[Access], register: Register) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut values: BTreeMap<&str, u64> = BTreeMap::new();
    for access in accesses {
        let written = match (access.kind, register) {
            (AccessKind::Write { fenced, .. }, Register::Fenced) => fenced,
            (
                AccessKind::Write { unfenced, .. } | AccessKind::StaleWrite { unfenced },
                Register::Unfenced,
            ) => unfenced,
            _ => continue,
        };
        let value = values.entry(&access.key).or_default();
        if written != *value + 1 {
            let text = format!(
                "w{} (hold {}) wrote {written} over {value}",
                access.worker, access.hold
            );
            let violation = Violation::new(Check::Counter, &access.key, access.at, access.at, text);
            found.push(violation);
        }
        // Goes on from what stands there, so that one lost update is one violation.
        *value = written;
    }
    found
}
