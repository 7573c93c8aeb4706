//! Renews the leases that are due, many in one pipeline.

use std::sync::Arc;
use std::time::Duration;

use super::{BATCH, WorkerState};
use crate::error::LockError;
use crate::runtime::held_lock::HeldLock;
use lock_protocol::acquisition::RenewOutcome;
use lock_protocol::clock::Moment;
use lock_protocol::lease::LeaseAction;
use lock_protocol::lease::RETRY;

/// Leases that were taken out of the schedule. The drop puts those without an outcome back,
/// whatever happens to their renewal.
struct DueLeases {
    state: Arc<WorkerState>,
    locks: Vec<Arc<HeldLock>>,
}

impl Drop for DueLeases {
    fn drop(&mut self) {
        let again_at = self.state.context.now().plus(*RETRY.start());
        for held in self.locks.drain(..) {
            self.state.schedule(again_at, &held);
        }
    }
}

/// Performs the next action of each lease. Renewals go out together, many in one pipeline.
pub(super) fn renew_due(state: &Arc<WorkerState>, due: Vec<Arc<HeldLock>>, now: Moment) {
    let mut due = DueLeases {
        state: Arc::clone(state),
        locks: due,
    };
    let mut renewed = Vec::new();
    while let Some(held) = due.locks.last() {
        let next_action = held.next_action();
        let Some(held) = due.locks.pop() else {
            break;
        };
        if let Some(limit) = next_action.renewal_limit(now, state.context.command_timeout) {
            renewed.push((limit, held));
            continue;
        }
        match next_action {
            LeaseAction::WaitUntil(at) => {
                state.schedule(at, &held);
            }
            // A lease that has ended was reported when its action was read.
            LeaseAction::Renew { .. } | LeaseAction::Done => {}
        }
    }
    for (limit, locks) in batches(renewed) {
        let leases = DueLeases {
            state: Arc::clone(state),
            locks,
        };
        state.context.spawn(renew(leases, limit));
    }
}

/// Groups leases whose renewals have about the same time limit. Otherwise a lease that ends soon
/// would limit the time of its whole batch.
pub(super) fn batches(
    mut leases: Vec<(Duration, Arc<HeldLock>)>,
) -> Vec<(Duration, Vec<Arc<HeldLock>>)> {
    leases.sort_by_key(|(limit, _)| *limit);
    let mut batches: Vec<(Duration, Vec<Arc<HeldLock>>)> = Vec::new();
    let mut goes_alone = false;
    for (most, held) in leases {
        // Transactions run one after another: no other lease is to wait for their replies.
        let is_alone = held.key.dialect().capabilities().works_without_scripts();
        match batches.last_mut() {
            Some((limit, batch))
                if !is_alone
                    && !goes_alone
                    && batch.len() < BATCH
                    && most <= limit.saturating_mul(2) =>
            {
                batch.push(held);
            }
            _ => batches.push((most, vec![held])),
        }
        goes_alone = is_alone;
    }
    batches
}

async fn renew(mut leases: DueLeases, limit: Duration) {
    let state = Arc::clone(&leases.state);
    let renewals: Vec<_> = leases.locks.iter().map(|held| held.renewal()).collect();
    let renewing = state.context.store.renew_all(&renewals, limit);
    // The end of each lease stays scheduled: the reply may never come.
    for held in &leases.locks {
        if let Some(deadline) = held.deadline() {
            state.schedule(deadline, held);
        }
    }
    let mut results = renewing.await;
    // From the back, so that a panic leaves exactly the leases without a result in `leases`.
    while let (Some(held), Some(result)) = (leases.locks.last(), results.pop()) {
        apply_result(&state, held, result);
        leases.locks.pop();
    }
    state.context.wake.notify_one();
}

fn apply_result(
    state: &WorkerState,
    held: &Arc<HeldLock>,
    result: Result<RenewOutcome, LockError>,
) {
    // The held lock reports the outcome.
    let _reported = held.apply_renewal(result);
    if let Some(due) = held.next_deadline() {
        state.schedule(due, held);
    } else {
        let removed = state.schedule.lock().remove(held);
        drop(removed);
    }
}
