//! Waits that take too long.

use super::{Run, Violation, ViolationKind};
use crate::event::{Call, Kind};

impl Run<'_> {
    pub(super) fn long_waits(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for operation in &self.operations {
            let Some(limit) = operation.limit else {
                continue;
            };
            // A future that was dropped did not wait: its task did something else.
            if operation.call != Call::Acquire || operation.kind == Kind::Dropped {
                continue;
            }
            let allowed = limit.saturating_add(self.tolerance);
            let due = operation.from.saturating_add(allowed);
            let to = operation.to.unwrap_or(self.ended);
            if to > due && !self.excuses.stalled(operation.process, operation.from, to) {
                let kind = ViolationKind::LongWait {
                    operation: operation.clone(),
                    limit,
                };
                found.push(Violation::new(kind, &operation.key, operation.from, to));
            }
        }
        found
    }
}
