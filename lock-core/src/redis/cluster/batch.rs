//! Renewals and releases of many locks, on all nodes side by side.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::super::errors::timed_out;
use super::call::{self, connected, is_about_route, may_give_tokens};
use super::nodes::{ClusterNode, ClusterNodes};
use crate::store::{Boxed, Call, Store, Together, fail_all};
use lock_protocol::clock::{Clock, Deadline};
use lock_protocol::dialect::Scheme;
use lock_protocol::key::LockKey;
use lock_protocol::op::OpKind;

/// Calls that were run, and how they were sent.
type Ran<'a, 'o> = (Vec<&'a mut Call<'o>>, SentAs);

#[derive(Clone, Copy, PartialEq, Eq)]
enum SentAs {
    Group,
    Alone,
}

/// Sends the calls of each node together. Those that their node didn't run, and releases that join no batch, go out
/// alone.
///
/// # Cancel safety
/// A command that was sent may still run.
pub(super) async fn run(
    nodes: &Arc<ClusterNodes>,
    calls: &mut [&mut Call<'_>],
    deadline: Deadline,
) {
    let gives_tokens = |call: &&mut Call<'_>| may_give_tokens(&call.op.kind);
    if calls.iter().any(gives_tokens) {
        nodes.use_now();
    }
    let (mut singles, mut others): (Vec<_>, Vec<_>) = calls
        .iter_mut()
        .map(|call| &mut **call)
        .partition(|call| goes_alone(call));
    // As on one server: one after the other at each node.
    let (by_owner, ownerless) = groups(nodes, &mut singles);
    let queues = by_owner.into_iter().map(|(_, calls)| calls);
    let queues = queues.chain(ownerless.into_iter().map(|call| vec![call]));
    let alone: FuturesUnordered<_> = queues
        .map(|calls| async move {
            for call in calls {
                run_alone(nodes, call, deadline).await;
            }
        })
        .collect();
    tokio::join!(
        alone.collect::<()>(),
        run_groups(nodes, &mut others, deadline)
    );
}

fn goes_alone(call: &Call<'_>) -> bool {
    matches!(&call.op.kind, OpKind::Release(request) if !joins_batches(&request.key))
}

/// Returns whether releases of this lock may go out together with others, on every node.
pub(super) fn joins_batches(key: &LockKey) -> bool {
    key.dialect()
        .scheme()
        .is_none_or(Scheme::releases_by_script)
}

async fn run_alone(nodes: &Arc<ClusterNodes>, call: &mut Call<'_>, deadline: Deadline) {
    call::run(nodes, &mut [call], Together::Each, deadline).await;
}

async fn run_groups(nodes: &Arc<ClusterNodes>, calls: &mut [&mut Call<'_>], deadline: Deadline) {
    {
        let (by_owner, ownerless) = groups(nodes, calls);
        let running = FuturesUnordered::new();
        for (owner, mut group) in by_owner {
            let run: Boxed<'_, Ran<'_, '_>> = Box::pin(async move {
                run_group(&owner, &mut group, deadline).await;
                (group, SentAs::Group)
            });
            running.push(run);
        }
        let alone = |call| -> Boxed<'_, Ran<'_, '_>> {
            Box::pin(async move {
                let call: &mut Call<'_> = call;
                run_alone(nodes, call, deadline).await;
                (vec![call], SentAs::Alone)
            })
        };
        // The deadline may be the end of the leases, and a holder has to hear of its renewal earlier.
        let patience = Deadline::after(Clock::System, deadline.left() / 2);
        finish(running, ownerless, alone, patience).await;
    }
    for call in calls.iter_mut().filter(|call| call.outcome.is_none()) {
        let error = timed_out("the node of the lock is slower than the others");
        call.outcome = Some(Err(error));
    }
}

/// Calls, by the nodes that own their slots.
type ByOwner<'a, 'o> = Vec<(Arc<ClusterNode>, Vec<&'a mut Call<'o>>)>;

/// Groups the calls by the owner of their slot; those without a known owner come second.
fn groups<'a, 'o>(
    nodes: &ClusterNodes,
    calls: &'a mut [&mut Call<'o>],
) -> (ByOwner<'a, 'o>, Vec<&'a mut Call<'o>>) {
    let mut groups: HashMap<_, (Arc<ClusterNode>, Vec<_>)> = HashMap::new();
    let mut ownerless = Vec::new();
    for call in calls.iter_mut() {
        let owner = call.op.key().map(ClusterNodes::slot);
        match owner.and_then(|slot| nodes.owner(slot).ok()) {
            Some(owner) => {
                let group = groups.entry(owner.address.clone());
                let (_, group) = group.or_insert_with(|| (owner, Vec::new()));
                group.push(&mut **call);
            }
            None => ownerless.push(&mut **call),
        }
    }
    (groups.into_values().collect(), ownerless)
}

/// Runs the calls of one node, if it can be reached.
async fn run_group(owner: &ClusterNode, calls: &mut [&mut Call<'_>], deadline: Deadline) {
    if connected(&owner.server, deadline).await.is_err() {
        // Without an outcome, they go out alone.
        return;
    }
    let gives_tokens = |call: &&mut Call<'_>| may_give_tokens(&call.op.kind);
    if calls.iter().any(gives_tokens)
        && let Err(error) = owner.know_epoch(deadline.left()).await
    {
        return fail_all(calls, &error);
    }
    Store::call(&owner.server, calls, Together::Each, deadline).await;
}

/// Waits for the groups, and sends what they did not run once more, alone. After `patience`, known outcomes wait no
/// longer for slow nodes: what still runs is given up.
async fn finish<'a, 'o>(
    mut running: FuturesUnordered<Boxed<'a, Ran<'a, 'o>>>,
    mut unrouted: Vec<&'a mut Call<'o>>,
    alone: impl Fn(&'a mut Call<'o>) -> Boxed<'a, Ran<'a, 'o>>,
    patience: Deadline,
) {
    let mut has_outcomes = false;
    loop {
        for call in unrouted.drain(..) {
            call.begin_again();
            running.push(alone(call));
        }
        let next = running.next();
        let next = if has_outcomes {
            tokio::time::timeout(patience.left(), next).await
        } else {
            Ok(next.await)
        };
        let Ok(Some((calls, sent_as))) = next else {
            return;
        };
        for call in calls {
            let is_unrouted = call.outcome.is_none() || call.error().is_some_and(is_about_route);
            if is_unrouted && sent_as == SentAs::Group {
                unrouted.push(call);
            } else {
                has_outcomes = true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};
    use std::time::Duration;

    use tokio::time::Instant;

    use super::*;
    use crate::error::{BackendErrorKind, LockError};
    use lock_protocol::inspection::InspectDetail;
    use lock_protocol::key::LockName;
    use lock_protocol::op::Outcome;

    const LIMIT: Duration = Duration::from_secs(60);

    fn key() -> LockKey {
        LockKey::new("", &LockName::from("k")).unwrap()
    }

    fn calls<const N: usize>(key: &LockKey) -> [Call<'_>; N] {
        [(); N].map(|()| Call::new(OpKind::Inspect(key, InspectDetail::Short)))
    }

    const RAN: Outcome = Outcome::KeyFreed { was_owner: true };

    /// A node that has this outcome after a while.
    fn node<'a, 'o>(
        call: &'a mut Call<'o>,
        after: Duration,
        outcome: Option<Result<Outcome, LockError>>,
    ) -> Boxed<'a, Ran<'a, 'o>> {
        Box::pin(async move {
            tokio::time::sleep(after).await;
            call.outcome = outcome;
            (vec![call], SentAs::Group)
        })
    }

    fn never<'a, 'o>(_: &'a mut Call<'o>) -> Boxed<'a, Ran<'a, 'o>> {
        Box::pin(pending())
    }

    fn patience() -> Deadline {
        Deadline::after(Clock::Tokio, LIMIT / 2)
    }

    /// The deadline is the end of the leases, and a node may be silent until then.
    #[tokio::test(start_paused = true)]
    async fn outcomes_do_not_wait_for_a_slow_node_until_the_deadline() {
        let key = key();
        let [mut fast, mut slow] = calls(&key);
        let running = FuturesUnordered::new();
        running.push(node(&mut fast, Duration::ZERO, Some(Ok(RAN))));
        running.push(node(&mut slow, LIMIT, Some(Ok(RAN))));
        let began = Instant::now();
        finish(running, Vec::new(), never, patience()).await;
        assert!(began.elapsed() <= LIMIT / 2, "{:?}", began.elapsed());
        assert!(matches!(fast.outcome, Some(Ok(_))));
        assert!(slow.outcome.is_none());
    }

    /// No other outcome would come in time if the only node is slow.
    #[tokio::test(start_paused = true)]
    async fn batch_of_one_slow_node_waits_until_the_deadline() {
        let key = key();
        let [mut slow] = calls(&key);
        let running = FuturesUnordered::new();
        running.push(node(&mut slow, LIMIT * 3 / 4, Some(Ok(RAN))));
        finish(running, Vec::new(), never, patience()).await;
        assert!(matches!(slow.outcome, Some(Ok(_))));
    }

    /// Nodes that cannot be reached, or do not own the slot, do not hold up their calls while another node is slow.
    #[tokio::test(start_paused = true)]
    async fn calls_that_no_node_ran_go_out_alone_while_a_node_is_slow() {
        let key = key();
        let [
            mut done,
            mut unsent,
            mut unreachable,
            mut ownerless,
            mut slow,
        ] = calls(&key);
        let error = LockError::backend(BackendErrorKind::Unreachable, "the node");
        let running = FuturesUnordered::new();
        running.push(node(&mut done, Duration::ZERO, Some(Ok(RAN))));
        running.push(node(&mut unsent, Duration::ZERO, None));
        running.push(node(&mut unreachable, Duration::ZERO, Some(Err(error))));
        running.push(node(&mut slow, LIMIT, Some(Ok(RAN))));
        let alone = |call| -> Boxed<'_, Ran<'_, '_>> {
            let call: &mut Call<'_> = call;
            assert!(call.outcome.is_none(), "it begins again");
            call.outcome = Some(Ok(RAN));
            Box::pin(ready((vec![call], SentAs::Alone)))
        };
        finish(running, vec![&mut ownerless], alone, patience()).await;
        for call in [done, unsent, unreachable, ownerless] {
            assert!(matches!(call.outcome, Some(Ok(_))));
        }
        assert!(slow.outcome.is_none());
    }

    /// What a node refuses for another reason is an outcome.
    #[tokio::test(start_paused = true)]
    async fn refusal_that_is_not_about_the_route_does_not_go_out_again() {
        let key = key();
        let [mut refused] = calls(&key);
        let error = LockError::backend(BackendErrorKind::OutOfMemory, "the node");
        let running = FuturesUnordered::new();
        running.push(node(&mut refused, Duration::ZERO, Some(Err(error))));
        finish(running, Vec::new(), never, patience()).await;
        assert!(matches!(refused.outcome, Some(Err(_))));
    }
}
