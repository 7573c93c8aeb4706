//! The result of a check.

use std::fmt::{self, Display, Formatter};

use super::{Check, Violation};
use crate::event::{Access, AccessKind};
use crate::history::History;

/// Violations that are shown with an excerpt of the history. One fault causes many.
const SHOWN_IN_FULL: usize = 5;

/// Lines of the history that are shown for a violation.
const LINES: usize = 30;

/// Violations that are shown in one line each, after those in full.
const SHOWN_IN_SHORT: usize = 20;

/// The result of a check. Its `Display` has the verdict of each check, and for the first violations
/// an excerpt of the history.
#[derive(Clone, Debug)]
#[must_use = "a report that is not read finds no violation; call `assert_ok`"]
pub struct Report {
    checks: Vec<Check>,
    violations: Vec<Violation>,
    /// Of the first violations.
    excerpts: Vec<String>,
    counts: Counts,
}

/// How much a history has to check.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    held_locks: usize,
    waits: usize,
    accesses: usize,
    refused: usize,
    accepted_writes: usize,
}

impl Counts {
    pub(super) fn of(history: &History, held_locks: usize, waits: usize) -> Self {
        let count = |is_counted: fn(&&Access) -> bool| {
            let accesses = history.accesses.iter();
            accesses.filter(is_counted).count()
        };
        Self {
            held_locks,
            waits,
            accesses: history.accesses.len(),
            refused: count(|access| !access.kind.is_accepted()),
            accepted_writes: count(|access| matches!(access.kind, AccessKind::Write { .. })),
        }
    }
}

impl Report {
    pub(super) fn new(
        history: &History,
        checks: &[Check],
        violations: Vec<Violation>,
        counts: Counts,
    ) -> Self {
        let shown = violations.iter().take(SHOWN_IN_FULL);
        let excerpts = shown
            .map(|found| history.excerpt(&found.key, found.from, found.to, LINES))
            .collect();
        Self {
            checks: checks.to_vec(),
            violations,
            excerpts,
            counts,
        }
    }

    /// Returns all violations, in the order of the checks.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// Returns the violations without the report.
    #[must_use]
    pub fn into_violations(self) -> Vec<Violation> {
        self.violations
    }

    /// Returns the violations that one check found.
    pub fn found_by(&self, check: Check) -> impl Iterator<Item = &Violation> {
        let violations = self.violations.iter();
        violations.filter(move |violation| violation.check() == check)
    }

    /// Returns whether no check found a violation. An empty history has none: see
    /// [`held_locks`](Self::held_locks).
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.violations.is_empty()
    }

    /// Returns how many held locks were checked.
    #[must_use]
    pub fn held_locks(&self) -> usize {
        self.counts.held_locks
    }

    /// Returns whether the history has anything that this check concerns. The report of a check
    /// without data is `no data`.
    #[must_use]
    pub fn has_data(&self, check: Check) -> bool {
        let data = match check {
            Check::Exclusion | Check::Tokens | Check::Losses => self.counts.held_locks,
            Check::StaleAccesses => self.counts.accesses,
            Check::LostUpdates => self.counts.accepted_writes,
            Check::Waits => self.counts.waits,
        };
        data > 0
    }

    /// Returns how many writes the resources accepted.
    #[must_use]
    pub fn accepted_writes(&self) -> usize {
        self.counts.accepted_writes
    }

    /// Panics when a check found a violation, with the whole report.
    ///
    /// # Panics
    /// Panics when there is a violation. Also panics when the history has no held lock: then nothing
    /// was checked.
    #[track_caller]
    pub fn assert_ok(&self) {
        assert!(self.is_ok() && self.held_locks() > 0, "\n{self}");
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Counts {
            held_locks,
            accesses,
            refused,
            ..
        } = self.counts;
        writeln!(
            f,
            "{held_locks} held locks, {accesses} accesses to resources ({refused} refused)"
        )?;
        for check in &self.checks {
            let title = check.title();
            match self.found_by(*check).count() {
                0 if !self.has_data(*check) => writeln!(f, "no data  {title}")?,
                0 => writeln!(f, "pass  {title}")?,
                times => writeln!(f, "FAIL  {title}: {times} violations")?,
            }
        }
        if held_locks == 0 {
            writeln!(
                f,
                "nothing was checked: the history has no held lock; record an acquire first"
            )?;
        }
        for (violation, excerpt) in self.violations.iter().zip(&self.excerpts) {
            write!(f, "\n  {violation}\n{excerpt}")?;
        }
        let further = self.violations.iter().skip(SHOWN_IN_FULL);
        for violation in further.take(SHOWN_IN_SHORT) {
            write!(f, "\n  {violation}")?;
        }
        let left = self
            .violations
            .len()
            .saturating_sub(SHOWN_IN_FULL + SHOWN_IN_SHORT);
        match left {
            0 => Ok(()),
            _ => write!(f, "\n  and {left} more"),
        }
    }
}
