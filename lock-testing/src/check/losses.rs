//! Losses that are reported late or never, or that are not final.

use super::{Run, Violation, ViolationKind};
use crate::history::HeldLock;

impl Run<'_> {
    pub(super) fn late_losses(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for held in &self.held {
            let due = held.valid_until.saturating_add(self.tolerance);
            if held.valid_after_loss {
                let kind = ViolationKind::ValidAfterLoss { held: held.clone() };
                found.push(Violation::new(kind, &held.key, held.valid_until, due));
            }
            if !self.is_late(held, due) {
                continue;
            }
            let to = held.lost.unwrap_or(due);
            let kind = ViolationKind::LateLoss { held: held.clone() };
            found.push(Violation::new(kind, &held.key, held.valid_until, to));
        }
        found
    }

    fn is_late(&self, held: &HeldLock, due: u64) -> bool {
        let released_in_time = held.released.is_some_and(|released| released <= due);
        let lost_in_time = held.lost.is_some_and(|lost| lost <= due);
        if released_in_time || lost_in_time || self.ended <= due {
            return false;
        }
        // A process that did not run shortly before the end of the lease is late too.
        let since = held.valid_until.saturating_sub(self.tolerance);
        !self.excuses.stalled(held.process, since, due)
    }
}
