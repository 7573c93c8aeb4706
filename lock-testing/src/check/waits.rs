//! Waits that take too long.

use super::{Run, Violation, ViolationKind};
use crate::event::Nanos;
use crate::history::Operation;

impl Run<'_> {
    pub(super) fn long_waits(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        for operation in self.operations.iter().filter(|found| found.is_wait()) {
            let Some(limit) = operation.limit else {
                continue;
            };
            let to = self.end_of(operation);
            let stalled = self.stalls.time(operation.process, operation.from, to);
            let allowed = limit.saturating_add(self.tolerance).saturating_add(stalled);
            if to > operation.from.saturating_add(allowed) {
                let kind = ViolationKind::LongWait {
                    operation: operation.clone(),
                    limit,
                };
                found.push(Violation::new(kind, &operation.key, operation.from, to));
            }
        }
        found
    }

    /// Returns when the operation, its process or the run ended.
    fn end_of(&self, operation: &Operation) -> Nanos {
        let death = self.history.deaths.get(&operation.process).copied();
        let to = operation.to.unwrap_or(self.ended);
        death.map_or(to, |death| to.min(death))
    }
}
