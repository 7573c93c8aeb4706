//! A guard whose renewals, loss and release are recorded.

use std::ops::Deref;

use lock_core::{LockError, LockGuard, LockWatch};

use super::loss::LeaseRecord;
use crate::event::{Call, Kind};
use crate::record::AcquisitionRecord;

/// A [`LockGuard`] whose renewals, loss and release are recorded. Made by
/// [`RecordedRequest::acquire`](crate::RecordedRequest::acquire).
///
/// It derefs to the guard. [`renew`](Self::renew) and [`release`](Self::release) are recorded.
#[must_use = "the lock is released as soon as the guard is dropped"]
pub struct RecordedGuard {
    /// Dropped before the guard, so that the record of the release comes first.
    release: ReleaseRecord,
    guard: LockGuard,
    _lease: LeaseRecord,
}

impl RecordedGuard {
    pub(super) fn new(guard: LockGuard, record: AcquisitionRecord) -> Self {
        let watch = guard.watch();
        record.granted(&watch);
        let lease = LeaseRecord::start(&record, &watch);
        Self {
            release: ReleaseRecord::new(record, watch),
            guard,
            _lease: lease,
        }
    }

    /// Returns the record of the acquisition, for accesses to a
    /// [`FencedRegister`](crate::FencedRegister).
    #[must_use]
    pub fn record(&self) -> &AcquisitionRecord {
        &self.release.record
    }

    /// Renews the lease and records it, as [`LockGuard::renew`].
    ///
    /// # Errors
    /// As [`LockGuard::renew`].
    ///
    /// # Cancel safety
    /// As [`LockGuard::renew`]. The record shows a renewal that was dropped.
    pub async fn renew(&self) -> Result<(), LockError> {
        let record = self.record();
        record.step(Call::Renew, Kind::Invoke);
        let pending = record.pending(Call::Renew);
        let renewed = self.guard.renew().await;
        pending.finish();
        match &renewed {
            Ok(()) => {
                record.step(Call::Renew, Kind::Ok);
                record.lease(&self.release.watch);
            }
            Err(error) => record.failed(Call::Renew, error),
        }
        renewed
    }

    /// Releases the lock and records it, as [`LockGuard::release`].
    ///
    /// # Errors
    /// As [`LockGuard::release`].
    ///
    /// # Cancel safety
    /// As [`LockGuard::release`]. The record shows a release that was dropped.
    pub async fn release(self) -> Result<(), LockError> {
        let Self {
            mut release,
            guard,
            _lease,
        } = self;
        release.begin();
        let record = &release.record;
        let pending = record.pending(Call::Release);
        let released = guard.release().await;
        pending.finish();
        match &released {
            Ok(()) => record.step(Call::Release, Kind::Ok),
            Err(error) => record.failed(Call::Release, error),
        }
        released
    }
}

impl Deref for RecordedGuard {
    type Target = LockGuard;

    fn deref(&self) -> &LockGuard {
        &self.guard
    }
}

impl std::fmt::Debug for RecordedGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.guard.fmt(f)
    }
}

/// Records the release of a guard or a body that is dropped.
pub(super) struct ReleaseRecord {
    record: AcquisitionRecord,
    watch: LockWatch,
    has_begun: bool,
}

impl ReleaseRecord {
    pub(super) fn new(record: AcquisitionRecord, watch: LockWatch) -> Self {
        Self {
            record,
            watch,
            has_begun: false,
        }
    }

    pub(super) fn begin(&mut self) {
        self.has_begun = true;
        self.record.lease(&self.watch);
        self.record.step(Call::Release, Kind::Invoke);
    }
}

impl Drop for ReleaseRecord {
    fn drop(&mut self) {
        if !self.has_begun {
            self.begin();
            self.record.step(Call::Release, Kind::Dropped);
        }
    }
}
