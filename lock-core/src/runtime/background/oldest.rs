//! The gauge of the oldest held locks, which the worker writes while a recorder is installed.
//!
//! An age changes by itself, and a recorder can't ask for it. So the worker computes the ages from its deadlines in a turn
//! that it has anyway: a lock that is held for long is renewed. From then on it writes them every few seconds, until it has
//! written that no lock is held. Without a recorder, it never looks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::WorkerState;
use crate::telemetry::{PanicSource, metrics};
use lock_protocol::clock::Moment;

/// Recorders are read every 10 to 60 s.
const INTERVAL: Duration = Duration::from_secs(5);

/// When the gauge is written.
#[derive(Default)]
pub(super) struct OldestHeld {
    not_before: Option<Moment>,
    /// A later turn has to take an age back.
    is_shown: bool,
}

impl OldestHeld {
    /// Writes the ages, unless it was done a moment ago. In front of the renewals of a turn, which take locks from the
    /// deadlines.
    pub(super) fn write(&mut self, state: &Arc<WorkerState>, now: Moment) {
        if self.not_before.is_some_and(|at| now < at) || !metrics::is_recorded() {
            return;
        }
        self.not_before = Some(now.plus(INTERVAL));
        let ages = state.deadlines.oldest(now);
        self.is_shown = !ages.is_empty();
        write(state, &ages);
    }

    /// Returns when the worker has to write the ages even if it has nothing else to do.
    pub(super) fn next_at(&self) -> Option<Moment> {
        self.not_before.filter(|_| self.is_shown)
    }

    /// Takes the ages back: the manager is gone.
    pub(super) fn clear(&self, state: &Arc<WorkerState>) {
        if self.is_shown {
            write(state, &BTreeMap::new());
        }
    }
}

fn write(state: &Arc<WorkerState>, ages: &BTreeMap<&'static str, Duration>) {
    let manager = Arc::as_ptr(state).addr();
    let reporter = &state.context.reporter;
    reporter.guarded(PanicSource::Recorder, || {
        metrics::write_oldest(manager, ages);
    });
}
