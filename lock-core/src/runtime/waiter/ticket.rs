//! Hands a held lock over: a guard becomes a ticket, and a ticket becomes a guard.
//!
//! Both are one exchange of the owner id, by an acquire that names the earlier owner. The ticket gets an owner id of its
//! own, and not the guard's: so from the moment of the ticket on, the guard's process can neither renew nor release the
//! lock, and its renewals on their way neither lengthen nor shorten the ticket's lease.
//!
//! | Event | What becomes of the lock |
//! |---|---|
//! | `into_ticket` completes | the ticket holds it for `within` |
//! | `into_ticket` fails, or its future is dropped | both owner ids are released in the background |
//! | `resume` completes | the guard holds it, under a third owner id |
//! | `resume` finds another owner | nothing changes |
//! | `resume` fails otherwise, or its future is dropped | its owner id is released in the background: the lock is free if the exchange took effect, and the ticket stays valid if it didn't |

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{BoxedAcquire, check, connect_first, drive, drive_to_result, failed, lease_kind};
use crate::error::LockError;
use crate::runtime::acquired::Acquired;
use crate::runtime::inner::ManagerInner;
use crate::runtime::pending::PendingAcquire;
use crate::runtime::records::AcquireRecord;
use crate::store::{Reach, Renewal};
use lock_protocol::acquisition::{AcquireConfig, AcquireOrigin, Patience, RenewOutcome};
use lock_protocol::cleanup::Keep;
use lock_protocol::clock::Moment;
use lock_protocol::key::LockKey;
use lock_protocol::lease::LeaseConfig;
use lock_protocol::loss::LossReason;
use lock_protocol::owner_id::OwnerId;
use lock_protocol::renew::Renew;
use lock_protocol::ticket::LockTicket;
use lock_protocol::ttl::Ttl;

/// Makes a ticket of a held lock, whose lease ends after `within`.
///
/// # Cancel safety
/// Dropping the future releases the lock in the background.
pub(crate) async fn into_ticket(
    mut acquired: Acquired,
    within: Ttl,
) -> Result<LockTicket, LockError> {
    let inner = Arc::clone(&acquired.inner);
    let held = Arc::clone(&acquired.held);
    inner.check_process()?;
    inner.check_runtime()?;
    if held.is_lost() || held.is_released() {
        return Err(held.lost_error());
    }
    let (lease_config, ends) = held.lease_and_ends();
    let now = inner.clock().now();
    let longest = now.plus(inner.settings.command_timeout);
    let until = ends.deadline.map_or(longest, |end| end.min(longest));
    let lease_config = LeaseConfig {
        ttl: within,
        renew: Renew::Never,
        max_hold: None,
        ..lease_config
    };
    let patience = Patience::OneAttempt {
        started: now,
        until,
    };
    let key = held.key.clone();
    let config = exchange(
        &inner,
        key,
        lease_config,
        &held.label,
        patience,
        held.owner_id,
    );
    // Before the exchange: a renewal that it overtakes finds another owner, which doesn't count as a loss.
    inner.untrack(&held);
    let mut pending = PendingAcquire::new(&inner, config, None);
    let result = Box::pin(drive_to_result(&mut pending)).await;
    match pending.into_granted(result) {
        Ok((owner_id, token, lease)) => {
            let token = token.ok_or_else(LockError::unreadable)?;
            acquired.finish_exchange();
            let left = lease.remaining(inner.clock().now());
            let key = held.key.clone();
            Ok(LockTicket::new(
                key,
                owner_id,
                token,
                SystemTime::now(),
                left,
            ))
        }
        Err(LockError::TicketEnded { reason, .. }) => {
            let has_ended = ends.deadline.is_some_and(|end| held.clock.now() >= end);
            held.on_lost_before_release(if has_ended { held.own_end() } else { reason });
            Err(held.lost_error())
        }
        // Whether the key is free, the release in the background finds out.
        Err(error) => {
            held.on_release(&Err(error.clone()), Keep::Nothing);
            Err(error)
        }
    }
}

/// Makes a held lock of a ticket. Goes on for `outage_wait` while the server is away. The key is the ticket's.
///
/// # Cancel safety
/// Dropping the future releases a lock that was taken over meanwhile. Otherwise the ticket stays valid.
pub(crate) fn resume(
    inner: &Arc<ManagerInner>,
    ticket: &LockTicket,
    key: LockKey,
    lease_config: LeaseConfig,
    outage_wait: Duration,
) -> Result<BoxedAcquire, LockError> {
    inner.check_process()?;
    let started = inner.clock().now();
    let record = AcquireRecord::begin(inner, &key, lease_config.kind, started);
    if let Err(error) = check(inner, &key, lease_config.kind) {
        return Err(failed(record, error));
    }
    let until = started.plus(inner.settings.command_timeout);
    let patience = Patience::OneAttempt { started, until };
    let label = inner.acquire_label();
    let from = ticket.owner_id();
    let mut config = exchange(inner, key, lease_config, &label, patience, from);
    config.outage_wait = Some(outage_wait);
    let (inner, expires_at) = (Arc::clone(inner), ticket.expires_at());
    Ok(Box::pin(async move {
        let (key, label) = (config.key.clone(), Arc::clone(&config.label));
        let result = if inner.store.reach() == Reach::Down {
            connect_first(Arc::clone(&inner), config, record).await
        } else {
            drive(PendingAcquire::new(&inner, config, record)).await
        };
        let Err(LockError::TicketEnded { key: text, .. }) = result else {
            return result;
        };
        let renewal = Renewal {
            key,
            owner_id: from,
            ttl: lease_config.ttl.as_duration(),
            lease_config,
            label,
            confirmed_at: Moment::from_nanos(0),
        };
        let reason = reason_of(&inner, &renewal, expires_at).await;
        Err(LockError::TicketEnded { key: text, reason })
    }))
}

/// Asks why the owner id of a ticket no longer has its lock. It never has one again, so the renewal changes nothing.
async fn reason_of(inner: &ManagerInner, renewal: &Renewal, expires_at: SystemTime) -> LossReason {
    let limit = inner.settings.command_timeout;
    let reason = match inner.store.renew(renewal, limit).await {
        Ok(RenewOutcome::NotOwner(reason)) => reason,
        Ok(RenewOutcome::Held { .. }) | Err(_) => LossReason::Removed,
    };
    if reason == LossReason::Removed && SystemTime::now() >= expires_at {
        return LossReason::Expired;
    }
    reason
}

fn exchange(
    inner: &ManagerInner,
    key: LockKey,
    lease_config: LeaseConfig,
    label: &Arc<str>,
    patience: Patience,
    from: OwnerId,
) -> AcquireConfig {
    AcquireConfig {
        key,
        lease_config,
        label: Arc::clone(label),
        patience,
        outage_wait: None,
        origin: AcquireOrigin::Exchange { from },
        lease_kind: lease_kind(inner, lease_config),
        command_timeout: inner.settings.command_timeout,
        retry_interval: inner.settings.retry_interval,
    }
}
