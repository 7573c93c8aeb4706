//! The checks: pure functions from a history to its violations.
//!
//! Each check takes about `n log n` steps for `n` events.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::event::{Nanos, nanos};
use crate::history::{HeldLock, History, Operation, Stalls};

mod exclusion;
mod losses;
mod report;
mod resource;
#[cfg(test)]
mod tests;
mod tokens;
mod violation;
mod waits;

use report::Counts;
pub use report::Report;
pub use resource::{lost_updates, stale_accesses};
pub use violation::{Violation, ViolationKind};

/// A property that is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Check {
    /// No two holders of a lock believed at the same time that it is valid, except holders of one group:
    /// readers, or holders of permits, with no more permits than there are.
    Exclusion,
    /// The fencing tokens of a lock are unique, except that the holders of a group share one. Each grant has a higher token than all grants
    /// before its acquire, and than the holder before it. Without fencing tokens: no holder
    /// received one.
    Tokens,
    /// The resource accepted nothing from a holder after it had accepted an access of a later
    /// holder.
    StaleAccesses,
    /// The value of the resource is the number of its accepted writes.
    LostUpdates,
    /// Each loss is reported in time, and is final.
    Losses,
    /// Each acquire ends within its limit.
    Waits,
}

impl Check {
    /// All checks.
    pub const ALL: &[Self] = &[
        Self::Exclusion,
        Self::Tokens,
        Self::StaleAccesses,
        Self::LostUpdates,
        Self::Losses,
        Self::Waits,
    ];

    /// Returns the title for a report.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Exclusion => "only holders of one group are valid at once",
            Self::Tokens => "fencing tokens are unique and grow",
            Self::StaleAccesses => "the resource accepts no stale access",
            Self::LostUpdates => "the resource loses no update",
            Self::Losses => "losses are reported in time",
            Self::Waits => "waits end in time",
        }
    }
}

/// Whether the locks of a history have fencing tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FencingTokens {
    /// Each held lock has a token.
    #[default]
    Present,
    /// No held lock has a token, as in the dialects of other lock libraries.
    Absent,
}

/// Checks histories. Made by [`Checker::new`].
///
/// ```
/// use lock_testing::{Checker, Event, History};
///
/// let mut history = History::new();
/// // Process 1 holds the lock from 100 ns to 900 ns, and process 2 gets it at 500 ns.
/// history.events.push(Event::granted(100, 1, 1, "orders", Some(7), 900));
/// history.events.push(Event::granted(500, 2, 1, "orders", Some(8), 1_500));
/// let report = Checker::new().check(&history);
/// assert_eq!(report.violations().len(), 1);
/// assert!(report.to_string().contains("process 1 (acquisition 1, token 7)"));
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is checked before `check`"]
pub struct Checker {
    checks: Vec<Check>,
    tokens: FencingTokens,
    tolerance: Nanos,
    clock_error: Nanos,
}

/// The default of [`Checker::tolerance`]. The threads of a busy machine wake up late.
pub const DEFAULT_TOLERANCE: Duration = Duration::from_millis(250);

impl Default for Checker {
    fn default() -> Self {
        Self::new()
    }
}

impl Checker {
    /// Makes a checker with all checks and the default settings.
    pub fn new() -> Self {
        Self {
            checks: Check::ALL.to_vec(),
            tokens: FencingTokens::Present,
            tolerance: nanos(DEFAULT_TOLERANCE),
            clock_error: 0,
        }
    }

    /// Sets whether the locks have fencing tokens. Defaults to [`FencingTokens::Present`].
    pub fn fencing_tokens(mut self, tokens: FencingTokens) -> Self {
        self.tokens = tokens;
        self
    }

    /// Sets how late the library may be. A wait may end later than its [limit](crate::Event::limit)
    /// by this time. A loss may be reported later than the end of the lease by this time. The time
    /// of a [stall](crate::Stall) is added. Defaults to 250 ms.
    pub fn tolerance(mut self, tolerance: Duration) -> Self {
        self.tolerance = nanos(tolerance);
        self
    }

    /// Sets the largest difference between the clocks of the recorded machines.
    ///
    /// The checker does not report overlaps that are shorter. It does not order events that are
    /// closer. Defaults to zero, which is right for one machine.
    pub fn clock_error(mut self, error: Duration) -> Self {
        self.clock_error = nanos(error);
        self
    }

    /// Leaves out one check. Defaults to all checks.
    pub fn without(mut self, check: Check) -> Self {
        self.checks.retain(|known| *known != check);
        self
    }

    /// Checks a history.
    pub fn check(&self, history: &History) -> Report {
        let run = Run {
            history,
            held: history.held_locks(),
            operations: history.operations(),
            stalls: Stalls::of(history),
            ended: history.end(),
            tokens: self.tokens,
            tolerance: self.tolerance,
            clock_error: self.clock_error,
        };
        let mut violations = Vec::new();
        for check in &self.checks {
            violations.extend(run.run(*check));
        }
        let waits = run.operations.iter().filter(|found| found.is_wait());
        let counts = Counts::of(history, run.held.len(), waits.count());
        Report::new(history, &self.checks, violations, counts)
    }
}

/// One history while it is checked.
struct Run<'a> {
    history: &'a History,
    /// In the order of their grants.
    held: Vec<HeldLock>,
    operations: Vec<Operation>,
    stalls: Stalls,
    ended: Nanos,
    tokens: FencingTokens,
    tolerance: Nanos,
    clock_error: Nanos,
}

impl Run<'_> {
    fn run(&self, check: Check) -> Vec<Violation> {
        match (check, self.tokens) {
            (Check::Exclusion, _) => self.overlaps(),
            (Check::Tokens, FencingTokens::Present) => self.disordered_tokens(),
            (Check::Tokens, FencingTokens::Absent) => self.unexpected_tokens(),
            (Check::StaleAccesses, _) => stale_accesses(&self.history.accesses),
            (Check::LostUpdates, _) => lost_updates(&self.history.accesses),
            (Check::Losses, _) => self.late_losses(),
            (Check::Waits, _) => self.long_waits(),
        }
    }

    fn by_key(&self) -> BTreeMap<&str, Vec<&HeldLock>> {
        let mut keys: BTreeMap<&str, Vec<&HeldLock>> = BTreeMap::new();
        for held in &self.held {
            keys.entry(&held.key).or_default().push(held);
        }
        keys
    }
}
