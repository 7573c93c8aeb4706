//! Holders that write when their lease is over, where the resource has no token to refuse them by.
//!
//! No lock without tokens promises that such a write does no harm: the holder was paused between
//! its last look at the lease and its write, or the write was on its way. It is promised that a
//! holder that runs is notified, so that all other writes are in order.

use std::collections::BTreeMap;

use crate::checks::{Check, LATE, Violation};
use crate::event::{Nanos, nanos};
use crate::history::{Access, AccessKind, Assumption, HeldLock, History};

type Id = (u32, u64);

/// The holds of a record, by who has them.
pub struct Writers<'a> {
    history: &'a History,
    holds: BTreeMap<Id, &'a HeldLock>,
}

/// One update on its way.
#[derive(Clone, Copy)]
struct Written {
    at: Nanos,
    /// Whether it could not be prevented from being late.
    assumption: Assumption,
}

impl<'a> Writers<'a> {
    /// Of these holds.
    pub fn of(history: &'a History, holds: &'a [HeldLock]) -> Self {
        let id = |hold: &'a HeldLock| ((hold.worker, hold.number), hold);
        Self {
            history,
            holds: holds.iter().map(id).collect(),
        }
    }

    /// Whether the holder's lease was over when the resource was asked.
    pub fn is_late(&self, access: &Access) -> bool {
        let hold = self.holds.get(&(access.worker, access.hold));
        hold.is_none_or(|hold| access.at > hold.end())
    }

    /// Late because the process did not run, or within the time for the report of a loss.
    fn is_excused(&self, access: &Access) -> bool {
        let Some(hold) = self.holds.get(&(access.worker, access.hold)) else {
            return false;
        };
        let end = hold.end();
        let late = nanos(LATE);
        access.at > end
            && (access.at <= end + late
                || self
                    .history
                    .stalled(access.worker, end.saturating_sub(late), access.at))
    }

    /// Updates that wrote another value than the number of updates until then.
    ///
    /// Outside of what is promised where a late write came between the read and the write: it is
    /// the one that was lost, or the one that overwrote another.
    pub fn lost_updates(&self) -> Vec<Violation> {
        let mut found = Vec::new();
        let mut values: BTreeMap<&str, u64> = BTreeMap::new();
        let mut reads: BTreeMap<Id, Nanos> = BTreeMap::new();
        let mut writes: BTreeMap<&str, Vec<Written>> = BTreeMap::new();
        for access in &self.history.accesses {
            let id = (access.worker, access.hold);
            let AccessKind::Write { fenced, .. } = access.kind else {
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
            if fenced != *value + 1 {
                let read = reads.get(&id).copied().unwrap_or(access.at);
                let since_then = writes.iter().rev().take_while(|write| write.at >= read);
                let excused = since_then
                    .map(|write| write.assumption)
                    .any(|assumption| assumption == Assumption::Outside);
                let text = format!("w{} wrote {fenced} over {value}", access.worker);
                let violation = Violation::new(Check::Counter, &access.key, read, access.at, text);
                found.push(violation.excused_by(excused));
            }
            // Goes on from what stands there, so that one lost update is one violation.
            *value = fenced;
        }
        found
    }
}
