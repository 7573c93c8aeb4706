//! The record of a held lock that may be dropped with its runtime before it is released.

use std::sync::atomic::{AtomicBool, Ordering};

use lock_core::LockWatch;
use lock_testing::{AcquisitionRecord, Call, Kind};

/// A held lock that may be dropped with its runtime before it is released.
pub(super) struct PendingHold {
    log: AcquisitionRecord,
    held: LockWatch,
    is_finished: AtomicBool,
}

impl PendingHold {
    pub(super) fn new(log: &AcquisitionRecord, held: &LockWatch) -> Self {
        Self {
            log: log.clone(),
            held: held.clone(),
            is_finished: AtomicBool::new(false),
        }
    }

    pub(super) fn finish(&self) {
        self.is_finished.store(true, Ordering::Relaxed);
    }
}

impl Drop for PendingHold {
    fn drop(&mut self) {
        if *self.is_finished.get_mut() {
            return;
        }
        if self.held.is_lost() {
            // `run` drops a body that has lost its lock, perhaps before the end of its lease.
            self.log.lost(&self.held);
        } else {
            self.log.step(Call::Release, Kind::Invoke);
            self.log.step(Call::Release, Kind::Dropped);
        }
    }
}
