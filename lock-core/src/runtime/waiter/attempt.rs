//! One attempt to acquire a lock.

use std::sync::Arc;
use std::time::Duration;

use super::check;
use crate::backend::{AcquireOutcome, Acquisition};
use crate::error::{BackendErrorKind, LockError};
use crate::protocol::key::LockKey;
use crate::protocol::lease::LeaseConfig;
use crate::protocol::poll_schedule::NO_EXPIRY_POLL;
use crate::runtime::acquired::Acquired;
use crate::runtime::inner::ManagerInner;
use crate::runtime::no_expiry::{NO_EXPIRY_LIMIT, NoExpiry};
use crate::runtime::pending::PendingAcquire;

/// Makes one attempt, without an entry in the queue. `spent` is the part of the command timeout that
/// has passed.
///
/// # Cancel safety
/// Dropping the future releases a lock that was granted meanwhile.
pub(crate) async fn try_acquire(
    inner: &Arc<ManagerInner>,
    key: LockKey,
    lease_config: LeaseConfig,
    spent: Duration,
) -> Result<Acquired, LockError> {
    check(inner, &key)?;
    let clock = inner.clock();
    let timeout = inner.config.command_timeout;
    let started = clock.now();
    let until = started.plus(timeout.saturating_sub(spent));
    if inner.backend.seems_down() {
        inner.backend.wait_connected(until).await?;
    }
    let label = Arc::clone(&inner.config.label);
    let mut pending = PendingAcquire::new(
        Arc::clone(inner),
        Acquisition::new(key, lease_config, label, None),
    );
    let mut no_expiry = NoExpiry::default();
    let mut resent = false;
    loop {
        // A key without an expiry is polled for a while, also when the command timeout is shorter.
        let latest = no_expiry.latest(until.max(started.plus(NO_EXPIRY_LIMIT)));
        let latest = latest.unwrap_or(until);
        let limit = timeout.min(latest.since(clock.now()));
        match pending.send(limit).await {
            // The server may have closed an idle connection, which the first command finds out. A
            // second command with the same owner id is the same attempt.
            Err(error) if error.is_unreachable() && !resent && clock.now() < until => {
                resent = true;
            }
            Err(error) => return Err(no_expiry.instead_of(error, &pending.acquisition.key)),
            Ok(AcquireOutcome::Held {
                token,
                sent,
                remaining,
            }) => {
                let lease = pending.lease(sent, remaining);
                return check_still_valid(pending.into_acquired(token, lease));
            }
            Ok(AcquireOutcome::More) if clock.now() < until => {}
            Ok(AcquireOutcome::More) => return Err(too_many_dead_waiters()),
            Ok(
                AcquireOutcome::Queued {
                    holder_expiry,
                    holder,
                    ..
                }
                | AcquireOutcome::Busy {
                    holder_expiry,
                    holder,
                },
            ) => {
                let now = clock.now();
                if !no_expiry.observe(holder_expiry, holder.as_ref(), now) {
                    return Err(LockError::Contended {
                        key: pending.acquisition.key.text(),
                        holder: inner.holder(holder, None),
                    });
                }
                let left = no_expiry.left(now);
                if left.is_zero() {
                    return Err(no_expiry.error(&pending.acquisition.key));
                }
                tokio::time::sleep(NO_EXPIRY_POLL.min(left)).await;
            }
        }
    }
}

/// The error for a queue with too many dead waiters. The lock is not held, so it is not contended.
fn too_many_dead_waiters() -> LockError {
    LockError::backend(
        BackendErrorKind::TimedOut,
        "the queue of the lock holds very many dead waiters, which are still being removed",
    )
}

/// Rejects a lock whose lease ended before the reply arrived.
fn check_still_valid(acquired: Acquired) -> Result<Acquired, LockError> {
    if acquired.held.is_lost() {
        drop(acquired);
        return Err(LockError::backend(
            BackendErrorKind::TimedOut,
            "the server's reply came after the end of the lease that it granted",
        ));
    }
    Ok(acquired)
}
