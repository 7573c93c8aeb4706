//! Writes that the resource must refuse, and lost updates.

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

/// One of the resource's two counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// Refuses tokens lower than the highest token it has seen.
    Fenced,
    /// Accepts every write.
    Unfenced,
}

/// Finds updates that wrote a value other than the number of updates so far: some updates were
/// lost.
///
/// A lost update of the unfenced counter is no fault of the lock. The lock promises nothing to a
/// resource that does not check tokens. Such updates show that the faults were hard enough.
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
        // Continue from the written value, so that one lost update is one violation.
        *value = written;
    }
    found
}
