//! The results of a run.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use lock_core::dialect::Dialect;
use lock_testing::{Access, AccessKind, Call, Kind, Nanos, Operation, lost_updates};

use crate::checks::{self, Check, Missing, Violation};
use crate::dialects;
use crate::history::{Assumption, COMPLETES, History};
use crate::late::Writers;
use crate::sampler::orphaned;

/// Lines of a record that are shown for a violation.
const SHOWN: usize = 60;

/// Violations that are shown in full. One fault causes many.
const SHOWN_IN_FULL: usize = 5;

#[derive(Clone, Copy, Debug, Default)]
struct Outcomes {
    ok: u64,
    fail: u64,
    info: u64,
}

#[derive(Clone, Copy, Debug)]
struct Uses {
    times: u64,
    operations: u64,
    assumption: Assumption,
}

/// The figures of all rounds.
#[derive(Clone, Debug)]
pub struct Report {
    seed: u64,
    dialect: Dialect,
    rounds: Vec<String>,
    operations: BTreeMap<Call, Outcomes>,
    faults: BTreeMap<String, Uses>,
    violations: Vec<(usize, Violation, Option<String>)>,
    shown_in_full: usize,
    accepted: u64,
    stale_writes: u64,
    stale_reads: u64,
    unfenced_lost: usize,
    /// Writes that were accepted although the lease had expired: the resource could not detect it.
    late_writes: usize,
    /// How often a key was seen without an expiry, and how many such keys remained at the end.
    unexpiring: usize,
    unexpiring_in_the_end: usize,
    /// The delay between the deadline and the report of each loss, in processes that ran.
    notices: Vec<Nanos>,
    losses: u64,
    orphaned: Nanos,
    longest_wait: Nanos,
    stalls: usize,
    deaths: usize,
    /// How many samples of the servers' keys there were.
    samples: usize,
    /// How many jobs were done for a period.
    completed: usize,
    /// How many second values of pairs were read or written.
    pairs: usize,
    /// How many changes of balances there were.
    postings: usize,
}

impl Report {
    /// Creates an empty report.
    pub fn new(seed: u64, dialect: Dialect) -> Self {
        Self {
            seed,
            dialect,
            rounds: Vec::new(),
            operations: BTreeMap::new(),
            faults: BTreeMap::new(),
            violations: Vec::new(),
            shown_in_full: 0,
            accepted: 0,
            stale_writes: 0,
            stale_reads: 0,
            unfenced_lost: 0,
            late_writes: 0,
            unexpiring: 0,
            unexpiring_in_the_end: 0,
            notices: Vec::new(),
            losses: 0,
            orphaned: 0,
            longest_wait: 0,
            stalls: 0,
            deaths: 0,
            samples: 0,
            completed: 0,
            pairs: 0,
            postings: 0,
        }
    }

    /// Adds a round, and returns its violations.
    pub fn add(&mut self, title: String, history: &History) -> Vec<Violation> {
        self.rounds.push(title);
        let found = checks::check(history);
        for violation in &found {
            // A record is long, and one fault causes thousands of violations.
            let is_shown =
                violation.assumption == Assumption::Inside && self.shown_in_full < SHOWN_IN_FULL;
            self.shown_in_full += usize::from(is_shown);
            let excerpt = is_shown
                .then(|| history.excerpt(&violation.key, violation.from, violation.to, SHOWN));
            self.violations
                .push((self.rounds.len(), violation.clone(), excerpt));
        }
        let operations = history.operations();
        self.add_operations(history, &operations);
        self.add_faults(history, &operations);
        for access in &history.accesses {
            match access.kind {
                AccessKind::Write { .. } => self.accepted += 1,
                AccessKind::RefusedRead => self.stale_reads += 1,
                AccessKind::RefusedWrite => self.stale_writes += 1,
                _ => {}
            }
        }
        // A lost update of an unfenced counter is no fault of the lock: the lock promises nothing
        // to a resource that does not check tokens. It shows that the faults were hard enough.
        self.unfenced_lost += lost_updates(&history.unfenced).len();
        self.unexpiring += history.times_unexpiring();
        self.unexpiring_in_the_end += history.unexpiring.len();
        let holds = history.held_locks();
        let writers = Writers::of(history, &holds);
        let is_late_write = |access: &&Access| {
            matches!(access.kind, AccessKind::Write { .. }) && writers.is_late(access)
        };
        self.late_writes += history.accesses.iter().filter(is_late_write).count();
        for hold in &holds {
            let Some(lost) = hold.lost else { continue };
            self.losses += 1;
            if !history.stalled(hold.process, hold.granted, lost) {
                let ended = hold.valid_until.lease_end().unwrap_or(lost);
                self.notices.push(lost.saturating_sub(ended));
            }
        }
        self.orphaned += orphaned(history);
        self.stalls += history.stalls.len();
        self.deaths += history.deaths.len();
        self.samples += history.samples.len();
        let accesses = history.accesses.iter();
        let notes = history.events.iter().map(|event| event.note.as_deref());
        self.completed += notes.filter(|note| *note == Some(COMPLETES)).count();
        self.pairs += accesses.filter(|access| access.resource > 0).count();
        self.postings += history.postings.len();
        found
    }

    fn add_operations(&mut self, history: &History, operations: &[Operation]) {
        for operation in operations {
            let outcomes = self.operations.entry(operation.call).or_default();
            match operation.kind {
                Kind::Ok => outcomes.ok += 1,
                Kind::Fail => outcomes.fail += 1,
                _ => outcomes.info += 1,
            }
            if let (Call::Acquire, Kind::Ok, Some(to)) =
                (operation.call, operation.kind, operation.to)
            {
                self.longest_wait = self.longest_wait.max(to - operation.from);
            }
        }
        // The notification of a loss has no beginning.
        let shown_in_full = history
            .events
            .iter()
            .filter(|event| event.call == Call::Lost);
        self.operations.entry(Call::Lost).or_default().ok +=
            u64::try_from(shown_in_full.count()).unwrap_or(0);
    }

    fn add_faults(&mut self, history: &History, operations: &[Operation]) {
        let ended = history.end();
        for fault in &history.faults {
            let overlapping = operations.iter().filter(|operation| {
                operation.from < fault.to && operation.to.unwrap_or(ended) > fault.from
            });
            let uses = self.faults.entry(fault.name.clone()).or_insert(Uses {
                times: 0,
                operations: 0,
                assumption: fault.assumption,
            });
            uses.times += 1;
            uses.operations += u64::try_from(overlapping.count()).unwrap_or(0);
        }
    }

    fn inside(&self, check: Check) -> usize {
        self.count(check, Assumption::Inside)
    }

    fn count(&self, check: Check, assumption: Assumption) -> usize {
        let found = self.violations.iter();
        found
            .filter(|(_, violation, _)| {
                violation.check == check && violation.assumption == assumption
            })
            .count()
    }

    /// Returns whether the workload did something for the check to judge.
    fn has_data(&self, check: Check) -> bool {
        match check {
            Check::Pairs => self.pairs > 0,
            Check::Sums => self.postings > 0,
            Check::Periods => self.completed > 0,
            _ => true,
        }
    }

    /// Returns whether all checks passed and at least one write was checked.
    pub fn is_good(&self) -> bool {
        self.accepted > 0 && Check::ALL.iter().all(|check| self.inside(*check) == 0)
    }

    /// Returns the number of accepted updates of the fenced counters.
    pub fn accepted_writes(&self) -> u64 {
        self.accepted
    }

    /// Returns the number of operations that overlapped a fault with this name.
    pub fn overlapped(&self, fault: &str) -> u64 {
        self.faults.get(fault).map_or(0, |uses| uses.operations)
    }

    fn p99(&self) -> Option<Nanos> {
        let mut notices = self.notices.clone();
        notices.sort_unstable();
        notices
            .get((notices.len() * 99).div_ceil(100).checked_sub(1)?)
            .copied()
    }
}

fn seconds(span: Nanos) -> String {
    format!("{:.3} s", Duration::from_nanos(span).as_secs_f64())
}

fn side(assumption: Assumption) -> &'static str {
    match assumption {
        Assumption::Inside => "inside",
        Assumption::Outside => "outside",
        Assumption::Divided => "outside, tokens too",
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<20} {:>9} {:>9} {:>9}",
            "operations", "ok", "fail", "info"
        )?;
        for call in Call::ALL {
            let of = self.operations.get(call).copied().unwrap_or_default();
            let name = call.as_str();
            writeln!(f, "  {name:<18} {:>9} {:>9} {:>9}", of.ok, of.fail, of.info)?;
        }
        writeln!(
            f,
            "\n{:<30} {:>9} {:>9}   assumptions",
            "faults", "times", "overlaps"
        )?;
        for (name, uses) in &self.faults {
            let side = side(uses.assumption);
            writeln!(
                f,
                "  {name:<28} {:>9} {:>9}   {side}",
                uses.times, uses.operations
            )?;
        }
        self.write_violations(f)?;
        writeln!(f, "\nwrites accepted      {}", self.accepted)?;
        self.write_what_came_late(f)?;
        let p99 = self.p99().map_or_else(|| "none".to_owned(), seconds);
        writeln!(
            f,
            "losses reported      {}; p99 after the deadline {p99} (of {} in processes that ran)",
            self.losses,
            self.notices.len()
        )?;
        writeln!(f, "orphan-seconds       {}", seconds(self.orphaned))?;
        writeln!(f, "longest wait         {}", seconds(self.longest_wait))?;
        writeln!(f, "samples of keys      {}", self.samples)?;
        writeln!(
            f,
            "processes            {} killed, {} stalls",
            self.deaths, self.stalls
        )?;
        let dialect = dialects::name(self.dialect);
        writeln!(f, "dialect              {dialect}")?;
        writeln!(f, "seed                 {}\n", self.seed)?;
        let able = self.dialect.capabilities();
        let (mut checked, mut failed) = (0, 0);
        for (number, check) in Check::ALL.iter().enumerate() {
            let missing = check.missing(self.samples);
            let has_data = missing != Missing::All && self.has_data(*check);
            let verdict = if !check.applies(able) || !has_data {
                "n/a "
            } else if self.inside(*check) == 0 {
                checked += 1;
                "pass"
            } else {
                checked += 1;
                failed += 1;
                "FAIL"
            };
            let title = check.title(able);
            writeln!(f, "{verdict}  {}. {title}{}", number + 1, missing.note())?;
        }
        if self.accepted == 0 {
            writeln!(f, "FAIL  no write was accepted, so nothing was checked")?;
            checked += 1;
            failed += 1;
        }
        write!(f, "{} passed, {failed} failed", checked - failed)
    }
}

impl Report {
    fn write_what_came_late(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.dialect.capabilities().is_fenced() {
            writeln!(
                f,
                "stale, refused        {} writes, {} reads",
                self.stale_writes, self.stale_reads
            )?;
            writeln!(
                f,
                "unfenced counter     {} updates lost (no guarantee covers it)",
                self.unfenced_lost
            )
        } else {
            writeln!(
                f,
                "after the lease      {} writes, with no token to refuse them by",
                self.late_writes
            )?;
            if !dialects::may_leave_unexpiring(self.dialect) {
                return Ok(());
            }
            writeln!(
                f,
                "without expiry       seen {} times; {} keys at the end, left by killed holders",
                self.unexpiring, self.unexpiring_in_the_end
            )
        }
    }

    fn write_violations(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let able = self.dialect.capabilities();
        for assumption in [Assumption::Inside, Assumption::Outside] {
            let counts: Vec<String> = Check::ALL
                .iter()
                .map(|check| (self.count(*check, assumption), check))
                .filter(|(count, _)| *count > 0)
                .map(|(count, check)| format!("{count} x {}", check.title(able)))
                .collect();
            let total = if counts.is_empty() {
                "none".to_owned()
            } else {
                counts.join(", ")
            };
            writeln!(
                f,
                "\nviolations {} the assumptions: {total}",
                side(assumption)
            )?;
        }
        for (round, violation, excerpt) in &self.violations {
            let Some(excerpt) = excerpt else { continue };
            writeln!(
                f,
                "\n  round {round} ({}): {}: {}\n{excerpt}",
                self.rounds[round - 1],
                violation.check.title(able),
                violation.text
            )?;
        }
        Ok(())
    }
}
