//! The checks: pure functions from a record to its violations. `lock-testing` does what every
//! user can check. Here are the checks that need the faults or the samples of the server.

mod losses;
mod observers;
mod periods;
mod presence;
mod sums;
mod tickets;
mod waits;

use std::collections::BTreeMap;
use std::time::Duration;

use lock_core::dialect::Capabilities;
use lock_testing::{Checker, FencingTokens, HeldLock, Nanos, ViolationKind, nanos};
use losses::{losses_without_a_cause, losses_without_a_warning};
use observers::older_tokens;
use periods::repeated_work;
use presence::{half_written_pairs, strangers};
use sums::wrong_sums;
use tickets::second_resumes;
use waits::{hung_processes, idle_waiters, survivors};

use crate::history::{Assumption, Fault, History, LONGEST_TTL};
use crate::late::Writers;
use crate::topology::Topology;

/// The time that a waiter needs to reconnect after a fault: one command timeout and one backoff.
const RECOVERY: Duration = Duration::from_millis(1_500);

/// Less than what a failover adds to the tokens, minus the differences of the servers' clocks and the time
/// for which an old primary serves; more than these differences alone.
const EPOCH_US: u64 = 20_000_000;

/// How much later than promised a client may be notified: threads of a busy machine wake up late.
pub const LATE: Duration = Duration::from_millis(250);

/// A property of a record that is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Check {
    /// No two holders of a lock believed at the same time that it is valid.
    Exclusion,
    /// Fencing tokens of a lock are unique. Each grant has a higher token than all acquisitions
    /// that began before it. In dialects without tokens: no holder received one.
    Tokens,
    /// The resource accepted nothing from a holder after it had seen a later holder.
    Stale,
    /// The fenced counter equals the number of its accepted updates. In dialects without tokens
    /// nothing fences it.
    Counter,
    /// Each loss is reported within 250 ms after the deadline, each loss has a cause, and a lock that expires was at risk
    /// before.
    Loss,
    /// No waiter waited longer than the poll cap while the lock was free.
    Idle,
    /// No waiter waited longer than its `wait` plus 250 ms.
    Wait,
    /// No key outlived the last client by more than its ttl.
    Survivor,
    /// The resource saw no holders of different groups at one time, and no permit too many.
    Presence,
    /// No holder saw a pair of values while its writer was between them.
    Pairs,
    /// Transfers keep the sum of the balances, and a valid set is never refused.
    Sums,
    /// Nobody gets a lock whose work is done, before the period since its start is over.
    Periods,
}

impl Check {
    /// All checks, in the order of their numbers.
    pub const ALL: [Self; 12] = [
        Self::Exclusion,
        Self::Tokens,
        Self::Stale,
        Self::Counter,
        Self::Loss,
        Self::Idle,
        Self::Wait,
        Self::Survivor,
        Self::Presence,
        Self::Pairs,
        Self::Sums,
        Self::Periods,
    ];

    /// Returns whether a dialect with these capabilities promises the property.
    pub fn applies(self, able: Capabilities) -> bool {
        able.is_fenced() || self != Self::Stale
    }

    /// Returns how much of the check needs samples, if there were none.
    pub fn missing(self, samples: usize) -> Missing {
        match self {
            Self::Idle if samples == 0 => Missing::All,
            Self::Loss if samples == 0 => Missing::Causes,
            _ => Missing::Nothing,
        }
    }

    /// Returns the title for the report.
    pub fn title(self, able: Capabilities) -> &'static str {
        match self {
            Self::Exclusion => "no overlap of validity",
            Self::Tokens if able.is_fenced() => "tokens unique and increasing",
            Self::Tokens => "no token in a dialect without tokens",
            Self::Stale => "no stale write accepted",
            Self::Counter if able.is_fenced() => "fenced counter = accepted writes",
            Self::Counter => "counter = accepted writes",
            Self::Loss => "loss reported by the deadline + 250 ms, none without a cause",
            Self::Idle => "no waiter idle while the lock is free",
            Self::Wait => "no wait longer than `wait` + 250 ms",
            Self::Survivor => "no key outlives its ttl",
            Self::Presence => {
                "the resource saw no holders of different groups, and no permit too many"
            }
            Self::Pairs => "no half-written pair was read",
            Self::Sums => "transfers keep the sum",
            Self::Periods => "no work is repeated within its period",
        }
    }
}

/// How much of a check was not done because there were no samples of the servers' keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// All was checked.
    Nothing,
    /// Whether each loss has a cause was not checked.
    Causes,
    /// Nothing was checked.
    All,
}

impl Missing {
    /// Returns the remark for the report.
    pub fn note(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::Causes => " (causes not checked: no samples of the keys)",
            Self::All => " (no samples of the keys)",
        }
    }
}

/// A violation of a checked property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The check that found the violation.
    pub check: Check,
    /// The lock.
    pub key: String,
    /// When the violation began.
    pub from: Nanos,
    /// When the violation ended.
    pub to: Nanos,
    /// A description of the violation.
    pub text: String,
    /// Whether a guarantee was broken, or the guarantees do not cover the fault.
    pub assumption: Assumption,
}

impl Violation {
    pub(super) fn new(check: Check, key: &str, from: Nanos, to: Nanos, text: &str) -> Self {
        Self {
            check,
            key: key.to_owned(),
            from,
            to,
            text: format!("lock `{key}`: {text}"),
            assumption: Assumption::Inside,
        }
    }

    pub(super) fn excused_by(mut self, outside: bool) -> Self {
        if outside {
            self.assumption = Assumption::Outside;
        }
        self
    }

    /// Finds out whether the guarantees cover what `lock-testing` found.
    fn of(found: &lock_testing::Violation, history: &History, holds: &[HeldLock]) -> Self {
        let faults = &history.faults;
        let (check, is_outside) = match &found.kind {
            ViolationKind::TooManyPermits { first, second, .. } => {
                let requests = first.iter().map(|held| held.requested);
                let requested = requests.fold(second.requested, Nanos::min);
                let is_outside = is_outside(faults, requested, second.granted);
                (Check::Exclusion, is_outside)
            }
            ViolationKind::Overlap { first, second } => (
                Check::Exclusion,
                // The key may be lost after the server's grant, and before the holder learns of it.
                is_outside(
                    faults,
                    first.requested.min(second.requested),
                    second.granted,
                ),
            ),
            ViolationKind::TokenBehindHolder { earlier, later }
            | ViolationKind::TokenBehindGrant { earlier, later }
                if joined_restored_group(history, holds, earlier, later) =>
            {
                (Check::Tokens, true)
            }
            ViolationKind::TokenBehindHolder { earlier, .. }
            | ViolationKind::TokenBehindGrant { earlier, .. }
                if was_divided(faults, earlier.granted) =>
            {
                (Check::Tokens, true)
            }
            ViolationKind::TokenBehindHolder { earlier, later }
            | ViolationKind::TokenBehindGrant { earlier, later }
            | ViolationKind::DuplicateToken {
                first: earlier,
                second: later,
            } if !history.dialect.capabilities().is_fenced_after_data_loss() => (
                Check::Tokens,
                has_lost_data(faults, earlier.granted, later.granted),
            ),
            ViolationKind::TokenBehindHolder { earlier, later } if history.topology.is_none() => (
                Check::Tokens,
                is_outside(faults, later.requested, earlier.granted),
            ),
            ViolationKind::TokenBehindHolder { earlier, later }
            | ViolationKind::TokenBehindGrant { earlier, later } => {
                (Check::Tokens, is_of_old_primary(history, earlier, later))
            }
            ViolationKind::StaleAccess { .. } => (Check::Stale, false),
            ViolationKind::LostUpdate { .. } => (Check::Counter, false),
            ViolationKind::LateLoss { .. } | ViolationKind::ValidAfterLoss { .. } => {
                (Check::Loss, false)
            }
            ViolationKind::LongWait { .. } => (Check::Wait, false),
            _ => (Check::Tokens, false),
        };
        let violation = Self {
            check,
            key: found.key.to_string(),
            from: found.from,
            to: found.to,
            text: found.to_string(),
            assumption: Assumption::Inside,
        };
        violation.excused_by(is_outside)
    }
}

/// Runs all checks on a sorted record.
pub fn check(history: &History) -> Vec<Violation> {
    let holds = history.held_locks();
    let able = history.dialect.capabilities();
    // The workers record the wait itself as the limit, so the tolerance is all of what is promised.
    let checker = Checker::new().tolerance(LATE);
    let checker = if able.is_fenced() {
        checker
    } else {
        // Without tokens, nothing refuses a late write: see `late`.
        checker
            .fencing_tokens(FencingTokens::Absent)
            .without(lock_testing::Check::StaleAccesses)
            .without(lock_testing::Check::LostUpdates)
    };
    let report = checker.check(history);
    let found = report.violations().iter();
    let mut found: Vec<_> = found
        .map(|found| Violation::of(found, history, &holds))
        .collect();
    if !able.is_fenced() {
        found.extend(Writers::of(history, &holds).lost_updates());
    }
    found.extend(losses_without_a_cause(history, &holds));
    found.extend(losses_without_a_warning(history));
    found.extend(idle_waiters(history, &holds));
    found.extend(hung_processes(history));
    found.extend(survivors(history));
    found.extend(strangers(history, &holds));
    found.extend(half_written_pairs(history));
    found.extend(wrong_sums(history, &holds));
    found.extend(older_tokens(history));
    found.extend(second_resumes(history, &holds));
    found.extend(repeated_work(history, &holds));
    found.sort_by_key(|violation| violation.check);
    found
}

/// Returns whether the server may have lost, just before `moment`, a lock held since `held`.
fn is_outside(faults: &[Fault], held: Nanos, moment: Nanos) -> bool {
    faults.iter().any(|fault| {
        !fault.assumption.excludes()
            && held <= fault.to
            && (fault.from..=fault.to + nanos(LONGEST_TTL)).contains(&moment)
    })
}

/// Returns whether a grant may be that of another primary than later ones, whose tokens are lower then.
fn was_divided(faults: &[Fault], granted: Nanos) -> bool {
    faults.iter().any(|fault| {
        fault.assumption == Assumption::Divided
            && (fault.from..=fault.to + nanos(LONGEST_TTL)).contains(&granted)
    })
}

/// Returns whether the server may have lost data between two moments: then a counter may have begun again.
fn has_lost_data(faults: &[Fault], from: Nanos, to: Nanos) -> bool {
    let (from, to) = (from.min(to), from.max(to));
    faults
        .iter()
        .any(|fault| !fault.assumption.excludes() && from <= fault.to && fault.from <= to)
}

/// Returns whether a primary that a failover has replaced still served, and gave the later holder its lower
/// token.
///
/// Tokens grow across failovers, and stay above those of an old primary, because each failover raises them by
/// a minute. So the token of an old primary is far behind. A token that is a little behind was given by the
/// new primary, which must not happen. At a quorum no server decides alone, so nothing is excused.
fn is_of_old_primary(history: &History, earlier: &HeldLock, later: &HeldLock) -> bool {
    let has_epochs = matches!(
        history.topology,
        Some(Topology::Sentinel | Topology::Cluster)
    );
    let behind = earlier.token.zip(later.token);
    let behind = behind.map_or(0, |(earlier, later)| earlier.saturating_sub(later));
    let held = earlier.granted.min(later.requested);
    has_epochs && behind >= EPOCH_US && is_outside(&history.faults, held, later.granted)
}

/// Returns whether the later holder joined readers, or holders of permits, that the server had lost and restored.
///
/// All holders of a group share its token. When an old snapshot brings a group back, its token is lower than those
/// that the server gave after the snapshot. A resource refuses it until the group ends.
fn joined_restored_group(
    history: &History,
    holds: &[HeldLock],
    earlier: &HeldLock,
    later: &HeldLock,
) -> bool {
    let group = holds
        .iter()
        .filter(|held| held.key == later.key && held.is_of_group(later));
    let first = group.clone().map(|held| held.granted).min();
    let restored = group
        .map(|held| held.granted)
        .filter(|granted| *granted > earlier.granted)
        .min();
    match (first, restored) {
        (Some(first), Some(restored)) => {
            first < earlier.granted && is_outside(&history.faults, first, restored)
        }
        _ => false,
    }
}

fn by_key(holds: &[HeldLock]) -> BTreeMap<&str, Vec<&HeldLock>> {
    let mut keys: BTreeMap<&str, Vec<&HeldLock>> = BTreeMap::new();
    for hold in holds {
        keys.entry(&hold.key).or_default().push(hold);
    }
    keys
}
