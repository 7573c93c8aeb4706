//! The parts of a request that a set of locks uses: its options, for each of its names.

use std::sync::Arc;
use std::time::Duration;

use super::LockRequest;
use crate::error::LockError;
use crate::protocol::key::{LockKey, LockName};
use crate::protocol::lease::LeaseConfig;
use crate::runtime::inner::ManagerInner;

/// A checked request for one lock of a set.
pub(crate) struct SetMember {
    pub(crate) name: LockName,
    pub(crate) key: LockKey,
    pub(crate) lease_config: LeaseConfig,
    /// The wait of the set, or that of the name's override.
    pub(crate) wait: Duration,
}

impl LockRequest {
    /// Checks the request for a lock with this name and the options of this request.
    pub(crate) fn member(&self, name: LockName) -> Result<SetMember, LockError> {
        let mut request = self.clone();
        request.name = name;
        let (key, lease_config);
        if request.inner.overrides.are_set() {
            (key, lease_config, request) = request.overridden()?;
        } else {
            (key, lease_config) = request.checked()?;
        }
        Ok(SetMember {
            name: request.name,
            key,
            lease_config,
            wait: request.wait,
        })
    }

    pub(crate) fn manager(&self) -> &Arc<ManagerInner> {
        &self.inner
    }

    pub(crate) fn min_hold_time(&self) -> Option<Duration> {
        self.min_hold
    }

    /// Returns how much of the call's wait had passed before the request was made.
    pub(crate) fn time_spent(&self) -> Duration {
        self.spent
    }

    /// Returns the error of a set that cannot be requested for this reason.
    pub(crate) fn invalid_kind(
        &self,
        reason: crate::protocol::kind::InvalidKindReason,
    ) -> LockError {
        LockError::InvalidKind {
            kind: self.kind.kind,
            reason,
        }
    }
}
