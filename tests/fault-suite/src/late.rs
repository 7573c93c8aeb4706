//! Holders that write after their lease has expired, in dialects without a token to refuse them by.
//!
//! No lock without tokens prevents such a write. The holder was paused between its last check of
//! the lease and its write, or the write was in flight. The library does promise to notify a
//! running holder, so all other writes are correct.

use std::collections::BTreeMap;

use lock_testing::{Access, AccessKind, HeldLock, Nanos, Validity, nanos};

use crate::checks::{Check, LATE, Violation};
use crate::history::{Assumption, History};

type Id = (u32, u64);

/// The held locks of a record, by process and acquisition.
pub struct Writers<'a> {
    history: &'a History,
    holds: BTreeMap<Id, &'a HeldLock>,
}

/// One update in flight.
#[derive(Clone, Copy)]
struct Written {
    at: Nanos,
    /// Whether the library could not have prevented the late write.
    assumption: Assumption,
}

impl<'a> Writers<'a> {
    /// Collects these held locks.
    pub fn of(history: &'a History, holds: &'a [HeldLock]) -> Self {
        let id = |hold: &'a HeldLock| ((hold.process, hold.acquisition), hold);
        Self {
            history,
            holds: holds.iter().map(id).collect(),
        }
    }

    /// Returns whether the holder's lease had expired when the resource received the request.
    pub fn is_late(&self, access: &Access) -> bool {
        let hold = self.holds.get(&(access.process, access.acquisition));
        hold.is_none_or(|hold| Validity::from(access.at) > hold.end())
    }

    /// Returns whether the process did not run, or the write came within the time limit of a loss
    /// report.
    fn is_excused(&self, access: &Access) -> bool {
        let Some(hold) = self.holds.get(&(access.process, access.acquisition)) else {
            return false;
        };
        let Some(end) = hold.end().lease_end() else {
            return false;
        };
        let late = nanos(LATE);
        access.at > end
            && (access.at <= end + late
                || self
                    .history
                    .stalled(access.process, end.saturating_sub(late), access.at))
    }

    /// Returns updates that wrote a value other than the number of updates so far.
    ///
    /// Such an update is outside the guarantees if a late write came between its read and its
    /// write. Then the late write was lost, or it overwrote another write.
    pub fn lost_updates(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        let mut values: BTreeMap<&str, u64> = BTreeMap::new();
        let mut reads: BTreeMap<Id, Nanos> = BTreeMap::new();
        let mut writes: BTreeMap<&str, Vec<Written>> = BTreeMap::new();
        for access in &self.history.accesses {
            let id = (access.process, access.acquisition);
            let AccessKind::Write { value: written } = access.kind else {
                reads.insert(id, access.at);
                continue;
            };
            let assumption = if self.is_excused(access) {
                Assumption::Outside
            } else {
                Assumption::Inside
            };
            let writes = writes.entry(&access.key).or_default();
            writes.push(Written {
                at: access.at,
                assumption,
            });
            let value = values.entry(&access.key).or_default();
            if written != *value + 1 {
                let read = reads.get(&id).copied().unwrap_or(access.at);
                let since_then = writes.iter().rev().take_while(|write| write.at >= read);
                let excused = since_then
                    .map(|write| write.assumption)
                    .any(|assumption| assumption == Assumption::Outside);
                let text = format!("process {} wrote {written} over {value}", access.process);
                let violation = Violation::new(Check::Counter, &access.key, read, access.at, &text);
                found.push(violation.excused_by(excused));
            }
            // Continue from the written value, so that one lost update is one violation.
            *value = written;
        }
        found
    }
}
