//! Renewals and releases of many locks, on all nodes side by side.

use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::super::errors::timed_out;
use super::call::{is_about_route, wait_connected};
use super::nodes::{ClusterNode, ClusterNodes};
use crate::error::LockError;
use lock_protocol::clock::{Clock, Deadline};
use lock_protocol::key::LockKey;

/// The items of a batch, as indexes.
pub(super) struct Groups {
    /// By the nodes that own their slots.
    pub(super) by_owner: Vec<(Arc<ClusterNode>, Vec<usize>)>,
    /// Items of slots that no known node owns.
    pub(super) ownerless: Vec<usize>,
}

impl Groups {
    pub(super) fn of<'a>(nodes: &ClusterNodes, keys: impl Iterator<Item = &'a LockKey>) -> Self {
        let mut groups: HashMap<_, (Arc<ClusterNode>, Vec<usize>)> = HashMap::new();
        let mut ownerless = Vec::new();
        for (at, key) in keys.enumerate() {
            match nodes.owner(ClusterNodes::slot(key)) {
                Ok(owner) => {
                    let group = groups.entry(owner.address.clone());
                    let (_, indexes) = group.or_insert_with(|| (owner, Vec::new()));
                    indexes.push(at);
                }
                Err(_unknown) => ownerless.push(at),
            }
        }
        Self {
            by_owner: groups.into_values().collect(),
            ownerless,
        }
    }
}

/// The index and the result of an item; `None` if no node has got it.
type NumberedResult<T> = (usize, Option<Result<T, LockError>>);

/// A batch that runs on several nodes.
///
/// # Cancel safety
/// Dropping it ends its tasks. A command that was sent may still run.
pub(super) struct Batch<T> {
    /// In the order of the items.
    results: Vec<Option<Result<T, LockError>>>,
    running: JoinSet<Vec<NumberedResult<T>>>,
    deadline: Deadline,
    /// After this, no result waits for another node. The limit may be the rest of the leases, and a holder has to
    /// learn in time that its lease goes on.
    patience: Deadline,
}

impl<T: Send + 'static> Batch<T> {
    pub(super) fn begin(len: usize, limit: Duration) -> Self {
        Self {
            results: (0..len).map(|_| None).collect(),
            running: JoinSet::new(),
            deadline: Deadline::after(Clock::System, limit),
            patience: Deadline::after(Clock::System, limit / 2),
        }
    }

    /// Runs the items of one node, if it can be reached.
    pub(super) fn run_group<F>(
        &mut self,
        owner: Arc<ClusterNode>,
        indexes: Vec<usize>,
        run: impl FnOnce(Arc<ClusterNode>, Deadline) -> F + Send + 'static,
    ) where
        F: Future<Output = Vec<Result<T, LockError>>> + Send,
    {
        let deadline = self.deadline;
        self.running.spawn(async move {
            let results = match wait_connected(&owner.server, deadline).await {
                Ok(()) => run(owner, deadline).await.into_iter().map(Some).collect(),
                Err(_unsent) => indexes.iter().map(|_| None).collect::<Vec<_>>(),
            };
            indexes.into_iter().zip(results).collect()
        });
    }

    /// Returns the results. An item that no node has run goes out alone, by `alone`, within the given time.
    pub(super) async fn finish<F>(
        mut self,
        ownerless: Vec<usize>,
        alone: impl Fn(usize, Duration) -> F,
    ) -> Vec<Result<T, LockError>>
    where
        F: Future<Output = Result<T, LockError>> + Send + 'static,
    {
        let mut goes_alone = vec![false; self.results.len()];
        let mut unrouted = ownerless;
        let mut is_late = false;
        loop {
            for at in unrouted.drain(..) {
                goes_alone[at] = true;
                let result = alone(at, self.deadline.left());
                self.running
                    .spawn(async move { vec![(at, Some(result.await))] });
            }
            let has_results = self.results.iter().any(Option::is_some);
            let joined = self.running.join_next();
            let joined = if has_results {
                tokio::time::timeout(self.patience.left(), joined).await
            } else {
                Ok(joined.await)
            };
            match joined {
                Ok(Some(Ok(results))) => {
                    for (at, result) in results {
                        let is_unrouted = match &result {
                            None => true,
                            Some(result) => result.as_ref().is_err_and(is_about_route),
                        };
                        if is_unrouted && !goes_alone[at] {
                            unrouted.push(at);
                        } else {
                            self.results[at] = result;
                        }
                    }
                }
                // The runtime ends.
                Ok(Some(Err(_ended))) => {}
                Ok(None) => break,
                Err(_elapsed) => {
                    is_late = true;
                    break;
                }
            }
        }
        let unknown = || {
            if is_late {
                timed_out("the node of the lock is slower than the others")
            } else {
                LockError::NoRuntime
            }
        };
        let results = std::mem::take(&mut self.results);
        let known = results.into_iter();
        known
            .map(|result| result.unwrap_or_else(|| Err(unknown())))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::time::Instant;

    use super::*;
    use crate::error::BackendErrorKind;

    const LIMIT: Duration = Duration::from_secs(60);

    /// Begins a batch in which a node has run the first item.
    fn begin(len: usize) -> Batch<usize> {
        let mut batch = Batch::begin(len, LIMIT);
        batch.running.spawn(ready(vec![(0, Some(Ok(7)))]));
        batch
    }

    fn kind(result: &Result<usize, LockError>) -> BackendErrorKind {
        match result {
            Err(LockError::Backend(error)) => error.kind(),
            other => panic!("expected a backend error: {other:?}"),
        }
    }

    /// The limit is the rest of the leases, and a node may be silent until then.
    #[tokio::test(start_paused = true)]
    async fn results_do_not_wait_for_a_slow_node_until_the_limit() {
        let mut batch = begin(2);
        batch.running.spawn(async {
            tokio::time::sleep(LIMIT).await;
            vec![(1, Some(Err(timed_out("the node"))))]
        });
        let began = Instant::now();
        let results = batch.finish(Vec::new(), |_, _| pending()).await;
        assert!(began.elapsed() <= LIMIT / 2, "{:?}", began.elapsed());
        assert_eq!(*results[0].as_ref().unwrap(), 7);
        assert_eq!(kind(&results[1]), BackendErrorKind::TimedOut);
    }

    /// No other result would come in time if the only node is slow.
    #[tokio::test(start_paused = true)]
    async fn batch_of_one_slow_node_waits_until_the_limit() {
        let mut batch = Batch::begin(1, LIMIT);
        batch.running.spawn(async {
            tokio::time::sleep(LIMIT * 3 / 4).await;
            vec![(0, Some(Ok(7)))]
        });
        let results = batch.finish(Vec::new(), |_, _| pending()).await;
        assert_eq!(*results[0].as_ref().unwrap(), 7);
    }

    /// Nodes that cannot be reached, or do not own the slot, do not hold up their items while another node is slow.
    #[tokio::test(start_paused = true)]
    async fn items_that_no_node_ran_go_out_alone_while_a_node_is_slow() {
        let mut batch = begin(5);
        batch.running.spawn(pending());
        batch.running.spawn(ready(vec![(1, None)]));
        let unreachable = LockError::backend(BackendErrorKind::Unreachable, "the node");
        batch
            .running
            .spawn(ready(vec![(2, Some(Err(unreachable)))]));
        let results = batch.finish(vec![3], |at, _| ready(Ok(at * 10)));
        let results = results.await;
        for (at, alone) in [(1, 10), (2, 20), (3, 30)] {
            assert_eq!(*results[at].as_ref().unwrap(), alone);
        }
        assert_eq!(kind(&results[4]), BackendErrorKind::TimedOut);
    }
}
