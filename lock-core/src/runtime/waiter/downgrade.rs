//! Makes a held exclusive lock a read lock.

use std::sync::Arc;

use super::{drive, lease_kind};
use crate::error::LockError;
use crate::runtime::acquired::Acquired;
use crate::runtime::pending::PendingAcquire;
use crate::runtime::records::AcquireRecord;
use lock_protocol::acquisition::{AcquireConfig, AcquireOrigin, Patience};
use lock_protocol::cleanup::{Keep, ReleaseOutcome};
use lock_protocol::kind::Kind;

/// Makes an exclusive lock a read lock, under its owner id.
///
/// # Cancel safety
/// Dropping the future releases the lock in the background.
pub(crate) async fn downgrade(mut acquired: Acquired) -> Result<Acquired, LockError> {
    let inner = Arc::clone(&acquired.inner);
    let held = Arc::clone(&acquired.held);
    inner.check_process()?;
    inner.check_runtime()?;
    let now = inner.clock().now();
    let (lease_config, ends) = held.lease_and_ends();
    if held.is_lost() {
        return Err(held.lost_error());
    }
    let longest = now.plus(inner.settings.command_timeout);
    let until = ends
        .deadline
        .map_or(longest, |deadline| deadline.min(longest));
    let Some(request) = acquired.give_up_release() else {
        return Err(held.lost_error());
    };
    let config = AcquireConfig {
        key: held.key.clone(),
        lease_config,
        label: Arc::clone(&request.label),
        patience: Patience::OneAttempt {
            started: now,
            until,
        },
        outage_wait: None,
        origin: AcquireOrigin::Downgrade {
            held: Box::new(request),
            ends,
        },
        lease_kind: lease_kind(&inner, lease_config),
        command_timeout: inner.settings.command_timeout,
        retry_interval: inner.settings.retry_interval,
    };
    let record = AcquireRecord::begin(&inner, &held.key, Kind::Read, now);
    let result = Box::pin(drive(PendingAcquire::new(&inner, config, record))).await;
    match result {
        Ok(reader) => {
            held.on_release(&Ok(ReleaseOutcome::of_downgrade()), Keep::Nothing);
            Ok(reader)
        }
        Err(LockError::Lost { reason, .. }) => {
            let has_ended = ends.deadline.is_some_and(|end| held.clock.now() >= end);
            held.on_lost_before_release(if has_ended { held.own_end() } else { reason });
            Err(held.lost_error())
        }
        // Whether the key is free, the release in the background finds out.
        Err(error @ LockError::Backend(_)) => {
            held.on_release(&Err(error.clone()), Keep::Nothing);
            Err(error)
        }
        Err(error) => Err(error),
    }
}
