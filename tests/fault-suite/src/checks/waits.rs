//! Waiters that sleep while the lock is free, processes that hang, and keys that stay.

use std::collections::BTreeMap;
use std::time::Duration;

use lock_testing::{Call, HeldLock, Nanos, nanos};

use super::{Check, LATE, RECOVERY, Violation, by_key};
use crate::history::{History, KeyState, SAMPLE_GAP, WAITS};
use crate::topology::Topology;
use crate::worker::POLL_INTERVAL;

/// The longest sleep of the first waiter in the queue.
const POLL_CAP: Duration = Duration::from_secs(1);

/// The increase of the cap for each waiter.
const POLL_CAP_EACH: Duration = Duration::from_millis(100);

/// Returns the periods in which all samples of the server show that the lock is free.
fn free_times<'a>(history: &'a History, holds: &[HeldLock]) -> Vec<(&'a str, Nanos, Nanos)> {
    let mut open: BTreeMap<&str, (Nanos, Nanos)> = BTreeMap::new();
    let mut found = Vec::new();
    let granted = by_key(holds);
    for sample in &history.samples {
        let key = sample.key.as_str();
        let run = open.get(key).copied();
        let taken_between = |from: Nanos| {
            granted.get(key).is_some_and(|holds| {
                let first = holds.partition_point(|hold| hold.granted < from);
                holds
                    .get(first)
                    .is_some_and(|hold| hold.granted <= sample.to)
            })
        };
        match run {
            Some((from, last))
                if sample.state != KeyState::Free
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
        if sample.state == KeyState::Free {
            open.insert(key, (sample.to, sample.to));
        }
    }
    found.extend(
        open.into_iter()
            .map(|(key, (from, last))| (key, from, last)),
    );
    found
}

/// Returns how long a lock may be free while this many waiters wait for it.
///
/// An acquisition or release whose reply was lost costs a ttl in [`DeadlineGetset`]. That time does
/// not count here, because the key exists meanwhile.
///
/// A quorum has no queue, but an attempt there takes several round trips and may have to be repeated.
///
/// [`DeadlineGetset`]: lock_core::dialect::Dialect::DeadlineGetset
fn allowed_idle(history: &History, waiting: u32) -> Duration {
    let interval = if history.topology == Some(Topology::Quorum) {
        POLL_CAP
    } else if history.dialect.capabilities().hands_over() {
        POLL_CAP.max(POLL_CAP_EACH * waiting)
    } else if history.dialect.capabilities().notifies_waiters() {
        // A message wakes one waiter of a process. It may be lost, or its waiter may be stopped.
        POLL_CAP
    } else {
        POLL_INTERVAL
    };
    interval + LATE
}

pub(super) fn idle_waiters(history: &History, holds: &[HeldLock]) -> Vec<Violation> {
    let mut found = Vec::new();
    let ended = history.end();
    let waits: Vec<_> = history
        .operations()
        .into_iter()
        .filter(|operation| {
            operation.call == Call::Acquire && operation.note.as_deref() == Some(WAITS)
        })
        .collect();
    for (key, free_from, free_to) in free_times(history, holds) {
        let here: Vec<_> = waits
            .iter()
            .filter(|wait| &*wait.key == key && wait.from < free_to)
            .filter(|wait| wait.to.unwrap_or(ended) > free_from)
            .collect();
        let waiting = u32::try_from(here.len()).unwrap_or(u32::MAX);
        let allowed = nanos(allowed_idle(history, waiting));
        for wait in here {
            let mut from = free_from.max(wait.from);
            let mut to = free_to.min(wait.to.unwrap_or(ended));
            for fault in history.faults.iter().filter(|f| f.disturbs(wait.process)) {
                let over = fault.to + nanos(RECOVERY);
                if fault.from <= from {
                    from = from.max(over);
                } else {
                    to = to.min(fault.from);
                }
            }
            if to > from && to - from > allowed && !history.stalled(wait.process, from, to) {
                let text = format!(
                    "process {} kept waiting for {} ms while the lock was free",
                    wait.process,
                    (to - from) / 1_000_000
                );
                found.push(Violation::new(Check::Idle, key, from, to, &text));
                // One violation is enough for all waiters of this period.
                break;
            }
        }
    }
    found
}

pub(super) fn hung_processes(history: &History) -> Vec<Violation> {
    let ended = history.end();
    let found = history.hung.iter().map(|worker| {
        let text = format!("process {worker} did not exit at the end of the round");
        Violation::new(Check::Wait, "", ended, ended, &text)
    });
    found.collect()
}

pub(super) fn survivors(history: &History) -> Vec<Violation> {
    let ended = history.end();
    let found = history.survivors.iter().map(|key| {
        let text = "the key still existed";
        Violation::new(Check::Survivor, key, ended, ended, text)
    });
    found.collect()
}
