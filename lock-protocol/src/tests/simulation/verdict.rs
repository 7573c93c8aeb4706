//! The verdict on an episode: the checks of `lock-testing` on its history, and those of the watch.

use lock_testing::{Checker, Nanos, ViolationKind};

use super::Simulation;
use super::nemesis::SimulatedFault;
use crate::lock_state::KeyValue;

/// A property that the simulation checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SimulatedCheck {
    /// No two guards of a lock are valid at the same true time.
    Exclusion,
    /// Tokens are unique and grow.
    Tokens,
    /// The resource accepts nothing from an earlier holder.
    StaleAccess,
    /// The value of the resource is the number of its accepted writes.
    Counter,
    /// Each loss is noticed at the end of the lease.
    Loss,
    /// No waiter waits longer than the poll cap while the lock is free.
    Idle,
    /// Each wait ends within its limit plus 250 ms.
    Wait,
    /// No key outlives the last client by more than its ttl.
    Survivor,
    /// Nothing of an owner id comes back after its cleanup was confirmed.
    Finality,
    /// A waiter notices a handover to it.
    Handover,
}

/// A broken property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FoundViolation {
    pub(super) check: SimulatedCheck,
    pub(super) key: usize,
    pub(super) from: Nanos,
    pub(super) to: Nanos,
    pub(super) text: String,
    /// Whether the guarantees do not cover the fault that caused it.
    pub(super) is_outside: bool,
}

impl Simulation {
    /// Runs all checks.
    pub(super) fn judge(&mut self) -> Vec<FoundViolation> {
        let report = Checker::new().check(&self.history);
        let mut found = std::mem::take(&mut self.watch.found);
        for violation in report.into_violations() {
            found.push(self.verdict_on(&violation));
        }
        let now_ms = self.server.now_ms(self.now);
        for (key, state) in self.server.states.iter_mut().enumerate() {
            state.expire(now_ms);
            if let Some(value) = &state.key
                && !matches!(value.value, KeyValue::Foreign(_))
            {
                found.push(FoundViolation {
                    check: SimulatedCheck::Survivor,
                    key,
                    from: self.now,
                    to: self.now,
                    text: "the key still existed at the end".to_owned(),
                    is_outside: false,
                });
            }
        }
        found
    }

    fn verdict_on(&self, violation: &lock_testing::Violation) -> FoundViolation {
        let key = self.names.iter().position(|name| *name == violation.key);
        let key = key.expect("all locks have a name");
        let (check, is_outside) = match &violation.kind {
            ViolationKind::Overlap { first, second } => {
                // A waiter may notice long after the grant that it holds the lock.
                let held = first.requested.min(second.requested);
                let outside = self.is_outside(held, second.granted);
                (SimulatedCheck::Exclusion, outside)
            }
            ViolationKind::TokenBehindHolder { earlier, later } => {
                let outside = self.is_outside(later.requested, earlier.granted);
                (SimulatedCheck::Tokens, outside)
            }
            ViolationKind::StaleAccess { .. } => (SimulatedCheck::StaleAccess, false),
            ViolationKind::LostUpdate { .. } => (SimulatedCheck::Counter, false),
            ViolationKind::LateLoss { .. } | ViolationKind::ValidAfterLoss { .. } => {
                (SimulatedCheck::Loss, false)
            }
            ViolationKind::LongWait { .. } => (SimulatedCheck::Wait, false),
            _ => (SimulatedCheck::Tokens, false),
        };
        FoundViolation {
            check,
            key,
            from: violation.from,
            to: violation.to,
            text: violation.to_string(),
            is_outside,
        }
    }

    /// Returns whether the server may have lost, just before `moment`, a lock held since `held`.
    fn is_outside(&self, held: Nanos, moment: Nanos) -> bool {
        let covers = |fault: &SimulatedFault| {
            fault.is_outside
                && held <= fault.to
                && (fault.from..=fault.matters_until).contains(&moment)
        };
        self.nemesis.faults.iter().any(covers)
    }
}
