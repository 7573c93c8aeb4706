//! What the resource itself saw: holders that were there together, and pairs of values.

use std::collections::{BTreeMap, HashMap};

use lock_testing::{AccessKind, Checker, Event, HeldLock, Nanos, Validity, ViolationKind};

use super::{Check, Violation, is_outside};
use crate::history::History;

/// The process and the number of an acquisition.
type Id = (u32, u64);

/// Finds holders that used the resource at one time and must not hold the lock together.
///
/// A holder is there from its first to its last access, but not after the end of its lease: it may be stopped,
/// or killed, and never leave.
pub(super) fn strangers(history: &History, holds: &[HeldLock]) -> Vec<Violation> {
    let holds: HashMap<Id, &HeldLock> = holds.iter().map(|held| (id_of(held), held)).collect();
    let mut spans: BTreeMap<Id, (Nanos, Nanos)> = BTreeMap::new();
    for access in &history.accesses {
        let id = (access.process, access.acquisition);
        let span = spans.entry(id).or_insert((access.at, access.at));
        span.1 = span.1.max(access.at);
    }
    let mut seen = lock_testing::History::new();
    for (id, (from, to)) in spans {
        let Some(held) = holds.get(&id) else { continue };
        let until = held.end().min(Validity::Until(to));
        let from = from.max(held.granted);
        let event = Event::granted(from, id.0, id.1, &*held.key, held.token, until);
        seen.events.push(event.lock_kind(held.lock_kind));
    }
    let report = lock_testing::Check::ALL
        .iter()
        .fold(Checker::new(), |checker, check| {
            if *check == lock_testing::Check::Exclusion {
                checker
            } else {
                checker.without(*check)
            }
        });
    let report = report.check(&seen);
    let found = report.violations().iter().map(|found| {
        let ids: Vec<Id> = match &found.kind {
            ViolationKind::Overlap { first, second } => vec![id_of(first), id_of(second)],
            ViolationKind::TooManyPermits { first, second, .. } => {
                first.iter().chain([second]).map(id_of).collect()
            }
            _ => Vec::new(),
        };
        let requested = ids
            .iter()
            .filter_map(|id| holds.get(id))
            .map(|held| held.requested);
        let requested = requested.min().unwrap_or(found.from);
        let text = format!("the resource saw: {found}");
        let violation = Violation::new(Check::Presence, &found.key, found.from, found.to, &text);
        violation.excused_by(is_outside(&history.faults, requested, found.from))
    });
    found.collect()
}

fn id_of(held: &HeldLock) -> Id {
    (held.process, held.acquisition)
}

/// The fenced pair of values of one lock.
#[derive(Default)]
struct Pair {
    values: [u64; 2],
    writers: [Id; 2],
    /// What each holder read of the first value.
    reads: HashMap<Id, (Nanos, u64)>,
    /// Reads of an unequal pair: the reader, its time, and the writer that was between its values.
    unequal: Vec<(Id, Nanos, Nanos, Id)>,
}

/// Finds holders that read a pair between the two writes of one writer.
///
/// A writer that died, or that lost its lock, never writes the second value. No lock can keep the next readers
/// from its half-written pair.
pub(super) fn half_written_pairs(history: &History) -> Vec<Violation> {
    let mut pairs: BTreeMap<&str, Pair> = BTreeMap::new();
    let mut found = Vec::new();
    for access in &history.accesses {
        let id = (access.process, access.acquisition);
        let pair = pairs.entry(&access.key).or_default();
        let part = usize::try_from(access.resource).unwrap_or_default().min(1);
        match access.kind {
            AccessKind::Read if part == 0 => {
                pair.reads.insert(id, (access.at, pair.values[0]));
            }
            AccessKind::Read => {
                let Some((from, first)) = pair.reads.remove(&id) else {
                    continue;
                };
                if first > pair.values[1] {
                    pair.unequal.push((id, from, access.at, pair.writers[0]));
                } else if first < pair.values[1] {
                    let writer = pair.writers[1];
                    found.push(half_written(&access.key, id, writer, from, access.at));
                }
            }
            AccessKind::Write { value } => {
                pair.values[part] = value;
                pair.writers[part] = id;
                if part == 1 {
                    // It was no dead writer.
                    let (completed, others) = std::mem::take(&mut pair.unequal)
                        .into_iter()
                        .partition(|(reader, _, _, writer)| *writer == id && *reader != id);
                    pair.unequal = others;
                    let completed: Vec<_> = completed;
                    for (reader, from, to, writer) in completed {
                        found.push(half_written(&access.key, reader, writer, from, to));
                    }
                }
            }
            _ => {}
        }
    }
    found
}

fn half_written(key: &str, reader: Id, writer: Id, from: Nanos, to: Nanos) -> Violation {
    let text = format!(
        "process {} (acquisition {}) read the pair that process {} (acquisition {}) was writing",
        reader.0, reader.1, writer.0, writer.1
    );
    Violation::new(Check::Pairs, key, from, to, &text)
}
