//! The eight checks: pure functions from a record to what must not be in it.

use std::collections::BTreeMap;
use std::time::Duration;

use lock_core::Capabilities;

use crate::event::{Call, Nanos, nanos};
use crate::history::{
    Access, Accessed, Assumption, Fault, History, Hold, LONGEST_TTL, SAMPLE_GAP, Stood,
};
use crate::late::Writers;
use crate::worker::LOOK_INTERVAL;

/// How much later than promised a client may hear: threads of a busy machine wake up late.
pub const LATE: Duration = Duration::from_millis(250);

/// The longest that the first in the queue sleeps.
const POLL_CAP: Duration = Duration::from_secs(1);

/// What the cap grows by with each who waits.
const POLL_CAP_EACH: Duration = Duration::from_millis(100);

/// What a waiter needs to find its way back after a fault: one command timeout and a back-off.
const RECOVERY: Duration = Duration::from_millis(1_500);

/// What is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Check {
    /// No two holders of a lock took it to be valid at once.
    Exclusion,
    /// Tokens of a lock are unique, and grow from each grant to all that were asked for later. In
    /// dialects without tokens: nobody got one.
    Tokens,
    /// The resource took nothing from a holder after it had seen a later one.
    Stale,
    /// The fenced counter is as high as the number of its accepted updates. In dialects without
    /// tokens nothing fences it.
    Counter,
    /// Who lost a lock was told, by its deadline and 250 ms; and nobody lost one without a cause.
    Loss,
    /// Nobody waited longer than the poll cap while the lock was free.
    Idle,
    /// Nobody waited longer than it wanted to, and 250 ms.
    Wait,
    /// No key outlived the last client and its ttl.
    Survivor,
}

impl Check {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 8] = [
        Self::Exclusion,
        Self::Tokens,
        Self::Stale,
        Self::Counter,
        Self::Loss,
        Self::Idle,
        Self::Wait,
        Self::Survivor,
    ];

    /// Whether a dialect promises anything of that.
    pub fn applies(self, able: Capabilities) -> bool {
        able.fencing_token || self != Self::Stale
    }

    /// For the report.
    pub fn title(self, able: Capabilities) -> &'static str {
        match self {
            Self::Exclusion => "no overlap of validity",
            Self::Tokens if able.fencing_token => "tokens unique and increasing",
            Self::Tokens => "no token where there is none",
            Self::Stale => "no stale write accepted",
            Self::Counter if able.fencing_token => "fenced counter = accepted writes",
            Self::Counter => "counter = accepted writes",
            Self::Loss => "loss told by the deadline + 250 ms, none without a cause",
            Self::Idle => "no waiter idle while the lock is free",
            Self::Wait => "no wait longer than asked + 250 ms",
            Self::Survivor => "no key outlives its ttl",
        }
    }

    fn run(self, history: &History, holds: &[Hold]) -> Vec<Violation> {
        let has_tokens = history.dialect.capabilities().fencing_token;
        match self {
            Self::Exclusion => overlaps(history, holds),
            Self::Tokens if has_tokens => disordered_tokens(history, holds),
            Self::Tokens => tokens_of_nowhere(holds),
            Self::Stale => stale_accepts(&history.accesses),
            Self::Counter if has_tokens => lost_updates(&history.accesses, Register::Fenced),
            Self::Counter => Writers::of(history, holds).lost_updates(),
            Self::Loss => losses_not_told(history, holds),
            Self::Idle => idle_waiters(history, holds),
            Self::Wait => long_waits(history),
            Self::Survivor => survivors(history),
        }
    }
}

/// Something that must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which check found it.
    pub check: Check,
    /// The lock.
    pub key: String,
    /// When it began.
    pub from: Nanos,
    /// When it ended.
    pub to: Nanos,
    /// What is wrong.
    pub text: String,
    /// Whether a promise was broken, or only what nobody promised.
    pub assumption: Assumption,
}

impl Violation {
    pub(super) fn new(check: Check, key: &str, from: Nanos, to: Nanos, text: String) -> Self {
        Self {
            check,
            key: key.to_owned(),
            from,
            to,
            text,
            assumption: Assumption::Inside,
        }
    }

    pub(super) fn excused_by(mut self, outside: bool) -> Self {
        if outside {
            self.assumption = Assumption::Outside;
        }
        self
    }
}

/// Everything that the eight checks find in a sorted record.
pub fn check(history: &History) -> Vec<Violation> {
    let holds = history.holds();
    let found = Check::ALL.iter().map(|check| check.run(history, &holds));
    found.flatten().collect()
}

/// Whether the server may have lost, just before, what was held since `held`.
fn is_outside(faults: &[Fault], held: Nanos, moment: Nanos) -> bool {
    faults.iter().any(|fault| {
        fault.assumption == Assumption::Outside
            && held <= fault.to
            && (fault.from..=fault.to + nanos(LONGEST_TTL)).contains(&moment)
    })
}

fn by_key(holds: &[Hold]) -> BTreeMap<&str, Vec<&Hold>> {
    let mut keys: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
    for hold in holds {
        keys.entry(&hold.key).or_default().push(hold);
    }
    keys
}

fn overlaps(history: &History, holds: &[Hold]) -> Vec<Violation> {
    let mut found = Vec::new();
    for (key, holds) in by_key(holds) {
        let mut last: Option<&Hold> = None;
        for hold in holds.into_iter().filter(|hold| hold.was_ever_valid()) {
            if let Some(before) = last
                && hold.ok < before.end()
            {
                let to = before.end().min(hold.end());
                let text = format!(
                    "{before} and {hold} both held it for {} us",
                    (to - hold.ok) / 1000,
                );
                let outside = is_outside(&history.faults, before.ok, hold.ok);
                let violation = Violation::new(Check::Exclusion, key, hold.ok, to, text);
                found.push(violation.excused_by(outside));
            }
            if last.is_none_or(|last| last.end() < hold.end()) {
                last = Some(hold);
            }
        }
    }
    found
}

fn disordered_tokens(history: &History, holds: &[Hold]) -> Vec<Violation> {
    let mut found = Vec::new();
    for (key, holds) in by_key(holds) {
        let mut seen: BTreeMap<Option<u64>, &Hold> = BTreeMap::new();
        for hold in &holds {
            if let Some(other) = seen.insert(hold.token, hold) {
                let text = format!("{other} and {hold} were given the same");
                let violation = Violation::new(Check::Tokens, key, other.ok, hold.ok, text);
                found.push(violation);
            }
        }
        let mut asked = holds.clone();
        asked.sort_by_key(|hold| hold.asked);
        let mut earlier = holds.iter().peekable();
        let mut highest: Option<&Hold> = None;
        for hold in asked {
            while let Some(done) = earlier.next_if(|done| done.ok < hold.asked) {
                if highest.is_none_or(|highest| highest.token < done.token) {
                    highest = Some(done);
                }
            }
            if let Some(highest) = highest
                && hold.token < highest.token
            {
                let text = format!("{hold} was granted after {highest}");
                found.push(Violation::new(
                    Check::Tokens,
                    key,
                    highest.ok,
                    hold.ok,
                    text,
                ));
            }
        }
        // Two holds that were both valid when they became known are ordered too, although the
        // second was asked for before the first was granted.
        let mut valid = holds.iter().filter(|hold| hold.was_ever_valid());
        let mut last = valid.next();
        for hold in valid {
            if let Some(before) = last
                && hold.token < before.token
                && before.ok >= hold.asked
            {
                let text = format!("{before} held it, and {hold} after it");
                let outside = is_outside(&history.faults, hold.asked, before.ok);
                let violation = Violation::new(Check::Tokens, key, before.ok, hold.ok, text);
                found.push(violation.excused_by(outside));
            }
            last = Some(hold);
        }
    }
    found
}

/// A number that nobody else counts on is worse than none.
fn tokens_of_nowhere(holds: &[Hold]) -> Vec<Violation> {
    let has_one = holds.iter().filter(|hold| hold.token.is_some());
    has_one
        .map(|hold| {
            let text = format!("{hold} was given a token");
            Violation::new(Check::Tokens, &hold.key, hold.ok, hold.ok, text)
        })
        .collect()
}

fn stale_accepts(accesses: &[Access]) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut highest: BTreeMap<&str, &Access> = BTreeMap::new();
    for access in accesses {
        let is_accepted = matches!(access.it, Accessed::Read | Accessed::Write { .. });
        if !is_accepted {
            continue;
        }
        let seen = highest.entry(&access.key).or_insert(access);
        if access.token < seen.token {
            let text = format!(
                "w{} was accepted with {:?} after w{} with {:?}",
                access.worker, access.token, seen.worker, seen.token
            );
            let violation = Violation::new(Check::Stale, &access.key, seen.at, access.at, text);
            found.push(violation);
        } else {
            *seen = access;
        }
    }
    found
}

/// Which of the resource's two counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// Refuses tokens lower than one it has seen.
    Fenced,
    /// Takes everything.
    Unfenced,
}

/// Updates that wrote another value than the number of updates until then: some were lost.
///
/// Of the unfenced counter this is no fault of the lock, which promises nothing to a resource that
/// does not look at tokens; it shows that the faults were hard enough to break something.
pub fn lost_updates(accesses: &[Access], register: Register) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut values: BTreeMap<&str, u64> = BTreeMap::new();
    for access in accesses {
        let written = match (access.it, register) {
            (Accessed::Write { fenced, .. }, Register::Fenced) => fenced,
            (
                Accessed::Write { unfenced, .. } | Accessed::StaleWrite { unfenced },
                Register::Unfenced,
            ) => unfenced,
            _ => continue,
        };
        let value = values.entry(&access.key).or_default();
        if written != *value + 1 {
            let text = format!(
                "w{} (hold {}) wrote {written} over {value}",
                access.worker, access.hold
            );
            let violation = Violation::new(Check::Counter, &access.key, access.at, access.at, text);
            found.push(violation);
        }
        // Goes on from what stands there, so that one lost update is one violation.
        *value = written;
    }
    found
}

fn losses_not_told(history: &History, holds: &[Hold]) -> Vec<Violation> {
    let late = nanos(LATE);
    let mut found = Vec::new();
    for hold in holds {
        let due = hold.until + late;
        let mut add = |to: Nanos, text: String| {
            found.push(Violation::new(Check::Loss, &hold.key, hold.until, to, text));
        };
        if hold.held_after_loss {
            let text = format!("w{} was told of its loss and held it again", hold.worker);
            add(due, text);
        }
        if let Some(lost) = hold.lost
            && has_no_cause(history, hold, lost)
        {
            add(lost, format!("{hold} was lost, and nothing was broken"));
        }
        let given_up = hold.released.is_some_and(|released| released <= due);
        let in_time = hold.lost.is_some_and(|lost| lost <= due);
        let since = hold.until.saturating_sub(nanos(LONGEST_TTL));
        if given_up || in_time || history.ended <= due || history.stalled(hold.worker, since, due) {
            continue;
        }
        let text = match hold.lost {
            Some(lost) => format!(
                "{hold} was told of its loss {} us after its deadline",
                (lost - hold.until) / 1000
            ),
            None => format!("{hold} was never told of its loss"),
        };
        add(hold.lost.unwrap_or(due), text);
    }
    found
}

/// Whether a hold was lost though its process ran, the server answered, and whatever disturbed it
/// only asked for much.
fn has_no_cause(history: &History, hold: &Hold, lost: Nanos) -> bool {
    let from = hold.until.min(lost).saturating_sub(nanos(LONGEST_TTL));
    let has_broken = |fault: &Fault| {
        let overlaps = fault.from <= lost && from <= fault.to + nanos(RECOVERY);
        overlaps && fault.disturbs(hold.worker) && !fault.is_load
    };
    !history.faults.iter().any(has_broken)
        && !history.stalled(hold.worker, from, lost)
        && history.answered(from, lost)
}

/// Times in which the server said again and again that the lock is free.
fn free_times<'a>(history: &'a History, holds: &[Hold]) -> Vec<(&'a str, Nanos, Nanos)> {
    let mut open: BTreeMap<&str, (Nanos, Nanos)> = BTreeMap::new();
    let mut found = Vec::new();
    let granted = by_key(holds);
    for sample in &history.samples {
        let key = sample.key.as_str();
        let run = open.get(key).copied();
        let taken_between = |from: Nanos| {
            granted.get(key).is_some_and(|holds| {
                let first = holds.partition_point(|hold| hold.ok < from);
                holds.get(first).is_some_and(|hold| hold.ok <= sample.to)
            })
        };
        match run {
            Some((from, last))
                if sample.stood != Stood::Free
                    || sample.from > last + nanos(SAMPLE_GAP)
                    || taken_between(last) =>
            {
                found.push((key, from, last));
                open.remove(key);
            }
            Some((from, _)) => {
                open.insert(key, (from, sample.from));
                continue;
            }
            None => {}
        }
        if sample.stood == Stood::Free {
            open.insert(key, (sample.to, sample.to));
        }
    }
    found.extend(
        open.into_iter()
            .map(|(key, (from, last))| (key, from, last)),
    );
    found
}

/// How long a lock may be free while so many wait for it.
///
/// An acquisition or a release whose answer got lost costs [`DeadlineGetset`] a ttl: not of this
/// time, since the key stands there meanwhile.
///
/// [`DeadlineGetset`]: lock_core::Dialect::DeadlineGetset
fn allowed_idle(able: Capabilities, waiting: u32) -> Duration {
    let look = if able.handover {
        POLL_CAP.max(POLL_CAP_EACH * waiting)
    } else {
        LOOK_INTERVAL
    };
    look + LATE
}

fn idle_waiters(history: &History, holds: &[Hold]) -> Vec<Violation> {
    let mut found = Vec::new();
    let waits: Vec<_> = history
        .operations()
        .into_iter()
        .filter(|operation| operation.call == Call::Acquire && operation.waits)
        .collect();
    for (key, free_from, free_to) in free_times(history, holds) {
        let here: Vec<_> = waits
            .iter()
            .filter(|wait| wait.key == key && wait.from < free_to)
            .filter(|wait| wait.to.unwrap_or(history.ended) > free_from)
            .collect();
        let waiting = u32::try_from(here.len()).unwrap_or(u32::MAX);
        let allowed = nanos(allowed_idle(history.dialect.capabilities(), waiting));
        for wait in here {
            let mut from = free_from.max(wait.from);
            let mut to = free_to.min(wait.to.unwrap_or(history.ended));
            for fault in history.faults.iter().filter(|f| f.disturbs(wait.worker)) {
                let over = fault.to + nanos(RECOVERY);
                if fault.from <= from {
                    from = from.max(over);
                } else {
                    to = to.min(fault.from);
                }
            }
            if to > from && to - from > allowed && !history.stalled(wait.worker, from, to) {
                let text = format!(
                    "w{} went on waiting for {} ms while it was free",
                    wait.worker,
                    (to - from) / 1_000_000
                );
                found.push(Violation::new(Check::Idle, key, from, to, text));
                // One of those who waited says it for all.
                break;
            }
        }
    }
    found
}

fn long_waits(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    for worker in &history.hung {
        let text = format!("w{worker} did not end when it was told to");
        let ended = history.ended;
        found.push(Violation::new(Check::Wait, "", ended, ended, text));
    }
    for operation in history.operations() {
        let Some(within) = operation.within else {
            continue;
        };
        if operation.call != Call::Acquire || operation.dropped {
            continue;
        }
        let due = operation.from + within + nanos(LATE);
        let to = operation.to.unwrap_or(history.ended);
        if to > due && !history.stalled(operation.worker, operation.from, to) {
            let text = format!(
                "w{} waited {} ms, and wanted to wait {} ms",
                operation.worker,
                (to - operation.from) / 1_000_000,
                within / 1_000_000
            );
            let key = &operation.key;
            found.push(Violation::new(Check::Wait, key, operation.from, to, text));
        }
    }
    found
}

fn survivors(history: &History) -> Vec<Violation> {
    let ended = history.ended;
    let found = history.survivors.iter().map(|key| {
        let text = format!("`{key}` was still there");
        Violation::new(Check::Survivor, key, ended, ended, text)
    });
    found.collect()
}
