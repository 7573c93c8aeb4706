//! Holders that overlap.

use lock_protocol::kind::Kind as LockKind;

use super::{Run, Violation, ViolationKind};
use crate::event::{Nanos, Validity};
use crate::history::HeldLock;

impl Run<'_> {
    pub(super) fn overlaps(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for all in self.by_key().into_values() {
            // The holders that are valid at the moment of the grant, all of one group.
            let mut valid: Vec<&HeldLock> = Vec::new();
            for held in all.into_iter().filter(|held| held.was_ever_valid()) {
                let granted = held.granted.saturating_add(self.clock_error);
                valid.retain(|before| before.end().is_after(granted));
                let others = valid.iter().filter(|before| !before.is_of_group(held));
                if let Some(first) = others.max_by_key(|before| before.end()) {
                    let kind = ViolationKind::Overlap {
                        first: (*first).clone(),
                        second: held.clone(),
                    };
                    let to = self.end_of_overlap(first.end().min(held.end()));
                    found.push(Violation::new(kind, &held.key, held.granted, to));
                    // One of them is enough to find the next overlap.
                    valid.push(held);
                    valid = valid
                        .into_iter()
                        .max_by_key(|held| held.end())
                        .into_iter()
                        .collect();
                    continue;
                }
                let permits = permits(held) + valid.iter().map(|held| permits(held)).sum::<u64>();
                if permits > most_permits(held) {
                    let ends = valid.iter().map(|before| before.end());
                    let to = self.end_of_overlap(ends.fold(held.end(), Validity::min));
                    let kind = ViolationKind::TooManyPermits {
                        first: valid.iter().map(|before| (*before).clone()).collect(),
                        second: held.clone(),
                        permits,
                    };
                    found.push(Violation::new(kind, &held.key, held.granted, to));
                } else {
                    valid.push(held);
                }
            }
        }
        found
    }

    fn end_of_overlap(&self, end: Validity) -> Nanos {
        end.lease_end().unwrap_or(self.ended)
    }
}

/// Returns how many permits the holder has. Holders of other kinds need none.
fn permits(held: &HeldLock) -> u64 {
    match held.lock_kind {
        LockKind::Permits { weight, .. } => weight.into(),
        _ => 0,
    }
}

fn most_permits(held: &HeldLock) -> u64 {
    match held.lock_kind {
        LockKind::Permits { of, .. } => of.into(),
        _ => u64::MAX,
    }
}
