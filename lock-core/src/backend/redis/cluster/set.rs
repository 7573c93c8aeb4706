//! Sets of locks: consecutive locks of one slot form one command.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinSet;

use super::call::may_have_run;
use super::nodes::ClusterNodes;
use super::{ClusterBackend, RoutedCall, release_all, routed};
use crate::backend::Backend;
use crate::backend::set::{SetOutcomes, is_held};
use crate::error::LockError;
use lock_protocol::acquisition::SentAcquires;
use lock_protocol::cleanup::{ReleaseOutcome, ReleaseRequest};
use lock_protocol::clock::{Clock, Deadline};
use lock_protocol::key::LockKey;

/// Returns how many of the first items have keys in the slot of the first one.
fn run_length<T>(items: &[T], key: impl Fn(&T) -> &LockKey) -> usize {
    let slot = |item| ClusterNodes::slot(key(item));
    let first = items.first().map(slot);
    items
        .iter()
        .take_while(|item| Some(slot(item)) == first)
        .count()
}

/// Acquires the locks in their order, each run of one slot by one command. The locks of earlier runs stay when a
/// later one fails: a set of single attempts has to release them.
pub(super) async fn acquire(
    cluster: &ClusterBackend,
    mut sent: Vec<&mut SentAcquires>,
    limit: Duration,
) -> SetOutcomes {
    let deadline = Deadline::after(Clock::System, limit);
    let is_single = sent.first().is_some_and(|sent| sent.waits_until.is_none());
    let mut outcomes = SetOutcomes::with_capacity(sent.len());
    let mut rest = &mut sent[..];
    while !rest.is_empty() {
        let length = run_length(rest, |sent| &sent.key);
        let (run, later) = rest.split_at_mut(length);
        rest = later;
        let of_run = acquire_run(cluster, run, deadline.left()).await;
        let goes_on = of_run
            .iter()
            .all(|outcome| outcome.as_ref().is_some_and(is_held));
        if !goes_on && is_single {
            outcomes.fill_with(|| None);
        }
        outcomes.extend(of_run);
        if !goes_on {
            break;
        }
    }
    outcomes.resize_with(outcomes.len() + rest.len(), || None);
    outcomes
}

/// Acquires the locks of one slot. A run of one lock is an ordinary lock.
async fn acquire_run(
    cluster: &ClusterBackend,
    run: &mut [&mut SentAcquires],
    limit: Duration,
) -> SetOutcomes {
    if let [sent] = run {
        return vec![Some(cluster.acquire(sent, limit).await)];
    }
    let Some(key) = run.first().map(|sent| sent.key.clone()) else {
        return Vec::new();
    };
    let call = RoutedCall::begin_grant(&cluster.nodes, &key, limit);
    let outcomes = routed!(call, |node, left| async {
        let sent = run.iter_mut().map(|sent| &mut **sent).collect();
        let outcomes = Backend::acquire_set(&*node, sent, left).await;
        match outcomes.first() {
            // The node refused the whole command, or did not reply to it.
            Some(Some(Err(error))) => Err(error.clone()),
            _ => Ok(outcomes),
        }
    });
    outcomes.unwrap_or_else(|error| {
        let mut outcomes: SetOutcomes = run.iter().map(|_| None).collect();
        if let Some(first) = outcomes.first_mut() {
            *first = Some(Err(error));
        }
        outcomes
    })
}

/// Releases the locks, each run of one slot by one command, side by side: a node that does not reply holds up no
/// other. A command without a reply goes out for each lock alone.
pub(super) async fn release(
    cluster: &ClusterBackend,
    mut requests: &[&ReleaseRequest],
    limit: Duration,
) -> Vec<Result<ReleaseOutcome, LockError>> {
    if Handle::try_current().is_err() {
        return requests.iter().map(|_| Err(LockError::NoRuntime)).collect();
    }
    let mut outcomes = Vec::with_capacity(requests.len());
    let mut running = JoinSet::new();
    while !requests.is_empty() {
        let (run, later) = requests.split_at(run_length(requests, |request| &request.key));
        requests = later;
        let begins_at = outcomes.len();
        outcomes.extend(run.iter().map(|_| Err(LockError::NoRuntime)));
        let run: Vec<_> = run.iter().map(|request| (*request).clone()).collect();
        let nodes = Arc::clone(&cluster.nodes);
        running.spawn(async move {
            let run: Vec<_> = run.iter().collect();
            (begins_at, release_run(&nodes, &run, limit).await)
        });
    }
    while let Some(joined) = running.join_next().await {
        // A task without a result has ended with its runtime.
        let Ok((begins_at, of_run)) = joined else {
            continue;
        };
        for (outcome, of_one) in outcomes[begins_at..].iter_mut().zip(of_run) {
            *outcome = of_one;
        }
    }
    outcomes
}

async fn release_run(
    nodes: &Arc<ClusterNodes>,
    run: &[&ReleaseRequest],
    limit: Duration,
) -> Vec<Result<ReleaseOutcome, LockError>> {
    let deadline = Deadline::after(Clock::System, limit);
    let Some(first) = run.first() else {
        return Vec::new();
    };
    if run.len() == 1 {
        return release_all(nodes, run, limit).await;
    }
    let call = RoutedCall::begin_grant(nodes, &first.key, limit / 2);
    let outcomes = routed!(call, |node, left| async {
        let outcomes = Backend::release_set(&*node, run, left).await;
        match outcomes.first() {
            // The node refused the whole command, or did not reply to it.
            Some(Err(error)) if outcomes.iter().all(Result::is_err) => Err(error.clone()),
            _ => Ok(outcomes),
        }
    });
    match outcomes {
        Ok(outcomes) => outcomes,
        // The caller knows whether the locks were valid, and repeats each release alone.
        Err(error) if may_have_run(&error) => run.iter().map(|_| Err(error.clone())).collect(),
        // For example while the slot moves: then a single release still frees its key.
        Err(_) => release_all(nodes, run, deadline.left()).await,
    }
}
