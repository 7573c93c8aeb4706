//! Accesses that the resource must refuse, and lost updates.

use std::collections::HashMap;

use super::{Violation, ViolationKind};
use crate::event::{Access, AccessKind};

/// Finds accesses that a resource accepted after it had accepted an access with a higher token.
///
/// The accesses are in the order of each resource.
#[must_use]
pub fn stale_accesses(accesses: &[Access]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut highest: HashMap<(&str, u64), &Access> = HashMap::new();
    for access in accesses.iter().filter(|access| access.kind.is_accepted()) {
        let seen = highest
            .entry((&access.key, access.resource))
            .or_insert(access);
        if access.token < seen.token {
            let kind = ViolationKind::StaleAccess {
                earlier: seen.clone(),
                accepted: access.clone(),
            };
            found.push(Violation::new(kind, &access.key, seen.at, access.at));
        } else {
            *seen = access;
        }
    }
    found
}

/// Finds updates that wrote a value other than the number of accepted writes so far: some updates
/// were lost. One lost update is one violation.
///
/// The accesses are in the order of each resource, and each resource begins with the value 0.
#[must_use]
pub fn lost_updates(accesses: &[Access]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut values: HashMap<(&str, u64), u64> = HashMap::new();
    for access in accesses {
        let AccessKind::Write { value: written } = access.kind else {
            continue;
        };
        let value = values.entry((&access.key, access.resource)).or_default();
        if written != value.saturating_add(1) {
            let kind = ViolationKind::LostUpdate {
                access: access.clone(),
                before: *value,
            };
            found.push(Violation::new(kind, &access.key, access.at, access.at));
        }
        // Continue from the written value, so that one lost update is one violation.
        *value = written;
    }
    found
}
