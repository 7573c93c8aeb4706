//! Losses that are reported late or never, or that are not final.

use super::{Run, Violation, ViolationKind};
use crate::event::Nanos;
use crate::history::HeldLock;

impl Run<'_> {
    pub(super) fn late_losses(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for held in &self.held {
            let lease_end = held.valid_until.lease_end();
            if held.valid_after_loss {
                let kind = ViolationKind::ValidAfterLoss { held: held.clone() };
                let lost = held.lost.unwrap_or(held.granted);
                let to = lease_end.map_or(self.ended, |end| end.saturating_add(self.tolerance));
                found.push(Violation::new(
                    kind,
                    &held.key,
                    lease_end.unwrap_or(lost),
                    to,
                ));
            }
            // A lock without an end is lost at the moment of the report.
            let Some(lease_end) = lease_end else {
                continue;
            };
            let due = lease_end.saturating_add(self.tolerance);
            if self.is_late(held, lease_end, due) {
                let to = held.lost.unwrap_or(due);
                let kind = ViolationKind::LateLoss { held: held.clone() };
                found.push(Violation::new(kind, &held.key, lease_end, to));
            }
        }
        found
    }

    fn is_late(&self, held: &HeldLock, lease_end: Nanos, due: Nanos) -> bool {
        let death = self.history.deaths.get(&held.process).copied();
        let ends = [held.lost, held.released, death, Some(self.ended)];
        let to = ends.into_iter().flatten().min().unwrap_or(self.ended);
        // A process that did not run shortly before the end of the lease is late too.
        let since = lease_end.saturating_sub(self.tolerance);
        to > due.saturating_add(self.stalls.time(held.process, since, to))
    }
}
