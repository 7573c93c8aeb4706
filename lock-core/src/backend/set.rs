//! The operations on a set of locks, for backends that send a command for each lock.

use std::time::Duration;

use super::Backend;
use crate::error::LockError;
use lock_protocol::acquisition::{AcquireOutcome, SentAcquires};
use lock_protocol::cleanup::{ReleaseOutcome, ReleaseRequest};
use lock_protocol::clock::Deadline;

/// The outcomes of [`Backend::acquire_set`], one for each lock.
pub(crate) type SetOutcomes = Vec<Option<Result<AcquireOutcome, LockError>>>;

/// Acquires the locks one by one. After a lock that the caller does not get, those before it stay: a set of
/// single attempts has to release them.
pub(crate) async fn acquire_each<B: Backend + ?Sized>(
    backend: &B,
    sent: Vec<&mut SentAcquires>,
    limit: Duration,
) -> SetOutcomes {
    let deadline = Deadline::after(backend.clock(), limit);
    let mut outcomes = Vec::with_capacity(sent.len());
    let mut goes_on = true;
    for sent in sent {
        if !goes_on {
            outcomes.push(None);
            continue;
        }
        let outcome = backend.acquire(sent, deadline.left()).await;
        goes_on = is_held(&outcome);
        let is_single = sent.waits_until.is_none();
        if is_single && !goes_on {
            // The caller gets this lock's outcome alone, and releases the others.
            outcomes.fill_with(|| None);
        }
        outcomes.push(Some(outcome));
    }
    outcomes
}

/// Returns whether the caller has the lock after this outcome.
pub(crate) fn is_held(outcome: &Result<AcquireOutcome, LockError>) -> bool {
    matches!(outcome, Ok(AcquireOutcome::Held { .. }))
}

/// Releases the locks in one batch, if all of them can be in one, or else one by one.
pub(crate) async fn release_each<B: Backend + ?Sized>(
    backend: &B,
    release_requests: &[&ReleaseRequest],
    limit: Duration,
) -> Vec<Result<ReleaseOutcome, LockError>> {
    let can_batch = |request: &&ReleaseRequest| backend.can_batch_release(&request.key);
    if release_requests.iter().all(can_batch) {
        return backend.release_all(release_requests, limit).await;
    }
    let deadline = Deadline::after(backend.clock(), limit);
    let mut outcomes = Vec::with_capacity(release_requests.len());
    for request in release_requests {
        outcomes.push(backend.release(request, deadline.left()).await);
    }
    outcomes
}
