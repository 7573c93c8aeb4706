//! The record of a held lock that may be dropped with its runtime before it is released, and of its risk.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lock_core::{LockWatch, LossReason};
use lock_testing::{AcquisitionRecord, Call, Kind, Nanos, nanos};

use crate::history::UNWARNED;

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

/// A holder that looked this long before its lease ended has seen that the lease is at risk: with the shortest ttl, the
/// risk begins half a second before the end.
const JUST_BEFORE: Duration = Duration::from_millis(100);

/// When a holder last saw that its lock was held, and not at risk.
#[derive(Default)]
pub(super) struct LastSafe(AtomicU64);

impl LastSafe {
    /// Looks at the lock.
    pub(super) fn look(&self, log: &AcquisitionRecord, held: &LockWatch) {
        // The time first: the lock was safe after it.
        let at: Nanos = log.event(Call::Renew, Kind::Seen).at;
        if held.is_held() && !held.is_at_risk() {
            self.0.store(at, Ordering::Relaxed);
        }
    }

    /// Records that a lock expired which was not at risk just before. Call it as soon as the loss is reported.
    pub(super) fn on_loss(&self, log: &AcquisitionRecord, held: &LockWatch) {
        let mut event = log.event(Call::Renew, Kind::Seen);
        let safe = self.0.load(Ordering::Relaxed);
        let is_unwarned = safe > 0 && event.at.saturating_sub(safe) < nanos(JUST_BEFORE);
        if is_unwarned && held.loss_reason() == Some(LossReason::Expired) {
            event.note = Some(UNWARNED.into());
            log.write(event);
        }
    }
}
