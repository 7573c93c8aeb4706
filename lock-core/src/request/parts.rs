//! The parts of a request that sets of locks and leaders use.

use std::sync::Arc;
use std::time::Duration;

use super::LockRequest;
use crate::error::LockError;
use crate::runtime::inner::ManagerInner;
#[cfg(feature = "macros")]
use crate::telemetry::LockEvent;
use lock_protocol::key::{LockKey, LockName};
use lock_protocol::kind::{InvalidKindReason, Kind};
use lock_protocol::lease::LeaseConfig;

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
            name: request.name.clone(),
            key,
            lease_config,
            wait: request.wait_time(),
        })
    }

    /// Returns how long the request waits.
    pub(super) fn wait_time(&self) -> Duration {
        self.wait.unwrap_or(self.inner.settings.default_wait)
    }

    /// Returns the wait that the caller has set.
    pub(crate) fn own_wait(&self) -> Option<Duration> {
        self.wait
    }

    /// Returns the kind that was requested.
    pub(crate) fn requested_kind(&self) -> Kind {
        self.kind.kind
    }

    /// Reports that a body was skipped, because another holder has one of these locks.
    #[cfg(feature = "macros")]
    pub(crate) fn report_skip(&self, names: &[LockName], error: &LockError) {
        let keys = names
            .iter()
            .filter_map(|name| LockKey::new(&self.inner.settings.prefix, name).ok())
            .map(|key| key.in_dialect(self.dialect));
        // The event is about the lock that the error names.
        for key in keys.filter(|key| error.key() == Some(key.as_str())).take(1) {
            let lock = self.inner.reporter.id(&key).of_kind(self.kind.kind);
            self.inner.reporter.emit(&LockEvent::BodySkipped { lock });
        }
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

    /// Returns the error of a request that cannot be requested for this reason.
    pub(crate) fn invalid_kind(&self, reason: InvalidKindReason) -> LockError {
        LockError::InvalidKind {
            kind: self.kind.kind,
            reason,
        }
    }
}
