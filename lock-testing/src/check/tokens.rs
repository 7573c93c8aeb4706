//! Fencing tokens that are missing, or that do not grow.

use std::collections::HashMap;

use super::{Run, Violation, ViolationKind};
use crate::history::HeldLock;

impl Run<'_> {
    pub(super) fn disordered_tokens(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for mut all in self.by_key().into_values() {
            found.extend(missing_token(&all));
            all.retain(|held| held.token.is_some());
            duplicates(&all, &mut found);
            self.behind_grants(&all, &mut found);
            self.behind_holders(&all, &mut found);
        }
        found
    }

    /// Compares each grant with all grants before its acquire.
    fn behind_grants(&self, all: &[&HeldLock], found: &mut Vec<Violation>) {
        let mut by_request = all.to_vec();
        by_request.sort_by_key(|held| held.requested);
        let mut grants = all.iter().peekable();
        let mut highest: Option<&HeldLock> = None;
        for held in by_request {
            let is_before =
                |done: &&&HeldLock| done.granted.saturating_add(self.clock_error) < held.requested;
            while let Some(done) = grants.next_if(is_before) {
                if highest.is_none_or(|highest| highest.token < done.token) {
                    highest = Some(done);
                }
            }
            if let Some(highest) = highest
                && held.token < highest.token
            {
                let kind = ViolationKind::TokenBehindGrant {
                    earlier: highest.clone(),
                    later: held.clone(),
                };
                found.push(Violation::new(
                    kind,
                    &held.key,
                    highest.granted,
                    held.granted,
                ));
            }
        }
    }

    /// Compares each holder with the holder before it, when both were valid as their holders learned
    /// of them. This also orders an acquire that began before the grant of the holder before it.
    fn behind_holders(&self, all: &[&HeldLock], found: &mut Vec<Violation>) {
        let mut valid = all.iter().filter(|held| held.was_ever_valid());
        let mut last = valid.next();
        for held in valid {
            if let Some(before) = last
                && held.token < before.token
                // Otherwise the comparison with the grants before the acquire has found it.
                && before.granted.saturating_add(self.clock_error) >= held.requested
                // The order of two grants is not known when they are closer than the clocks are.
                && before.granted.saturating_add(self.clock_error) <= held.granted
            {
                let kind = ViolationKind::TokenBehindHolder {
                    earlier: (*before).clone(),
                    later: (*held).clone(),
                };
                found.push(Violation::new(
                    kind,
                    &held.key,
                    before.granted,
                    held.granted,
                ));
            }
            last = Some(held);
        }
    }

    /// A lock without fencing must give no token.
    pub(super) fn unexpected_tokens(&self) -> Vec<Violation> {
        let with_token = self.held.iter().filter(|held| held.token.is_some());
        with_token
            .map(|held| {
                let kind = ViolationKind::UnexpectedToken { held: held.clone() };
                Violation::new(kind, &held.key, held.granted, held.granted)
            })
            .collect()
    }
}

fn missing_token(all: &[&HeldLock]) -> Option<Violation> {
    let mut without = all.iter().filter(|held| held.token.is_none());
    let held = without.next()?;
    let kind = ViolationKind::MissingToken {
        held: (*held).clone(),
        times: 1 + without.count(),
    };
    Some(Violation::new(kind, &held.key, held.granted, held.granted))
}

fn duplicates(all: &[&HeldLock], found: &mut Vec<Violation>) {
    let mut seen: HashMap<Option<u64>, &HeldLock> = HashMap::new();
    for held in all {
        if let Some(first) = seen.insert(held.token, held)
            && !first.is_of_group(held)
        {
            let kind = ViolationKind::DuplicateToken {
                first: first.clone(),
                second: (*held).clone(),
            };
            found.push(Violation::new(kind, &held.key, first.granted, held.granted));
        }
    }
}
