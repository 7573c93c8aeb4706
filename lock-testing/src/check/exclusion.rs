//! Holders that overlap.

use super::{Run, Violation, ViolationKind};
use crate::history::HeldLock;

impl Run<'_> {
    pub(super) fn overlaps(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for all in self.by_key().into_values() {
            let mut last: Option<&HeldLock> = None;
            for held in all.into_iter().filter(|held| held.was_ever_valid()) {
                if let Some(before) = last
                    && before
                        .end()
                        .is_after(held.granted.saturating_add(self.clock_error))
                {
                    let to = before.end().min(held.end()).lease_end();
                    let to = to.unwrap_or(self.ended);
                    let kind = ViolationKind::Overlap {
                        first: before.clone(),
                        second: held.clone(),
                    };
                    found.push(Violation::new(kind, &held.key, held.granted, to));
                }
                if last.is_none_or(|last| last.end() < held.end()) {
                    last = Some(held);
                }
            }
        }
        found
    }
}
