//! What changes while a lock is held.

use std::collections::HashMap;
use std::task::Waker;

use crate::telemetry::Reporter;
use lock_protocol::lease::Lease;
use lock_protocol::loss::LossReason;

#[derive(Debug)]
pub(super) struct HeldState {
    pub(super) lease: Lease,
    /// Why the lock was lost. Set when the loss is counted; stays after the release.
    pub(super) loss: Option<LossReason>,
    /// An event has said that the release failed.
    pub(super) release_failed: bool,
    /// The wakers of tasks that wait for the loss. A map, since one lock may have thousands.
    pub(super) listeners: HashMap<u64, Waker>,
    pub(super) next_listener: u64,
}

impl HeldState {
    /// Records and counts a loss. Returns its reason, unless a loss was recorded before.
    #[must_use]
    pub(super) fn lose(&mut self, reason: LossReason, reporter: &Reporter) -> Option<LossReason> {
        if self.loss.is_some() {
            return None;
        }
        reporter.lost();
        self.loss = Some(reason.clone());
        Some(reason)
    }

    /// Records a release that failed. Returns false for a lock that was lost before.
    #[must_use]
    pub(super) fn fail_release(&mut self) -> bool {
        self.release_failed = true;
        self.loss.is_none()
    }
}
