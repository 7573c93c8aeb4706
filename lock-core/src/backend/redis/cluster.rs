//! The backend for locks in a Redis Cluster.
//!
//! Each node is a server of its own, with its own connections, clocks and subscriptions. A call goes to
//! the node that owns the slot of the key, and follows what the nodes reply: another owner, a slot that
//! moves, a cluster that is down. The slot map is read again whenever a reply contradicts it.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use crate::backend::admin::AdminBackend;
use crate::backend::set::SetOutcomes;
use crate::backend::{Backend, BackendStatus, Boxed, Renewal};
use crate::error::LockError;
use crate::telemetry::ServerAddress;
use lock_protocol::acquisition::{AcquireOutcome, RenewOutcome, SentAcquires};
use lock_protocol::cleanup::{ReleaseOutcome, ReleaseRequest};
use lock_protocol::clock::{Clock, Deadline, Moment};
use lock_protocol::key::LockKey;

mod admin;
mod batch;
mod call;
mod map;
mod names;
mod nodes;
mod refresh;
mod set;

use batch::{Batch, Groups};
use call::{RoutedCall, may_have_run};
use nodes::ClusterNode;
pub(super) use nodes::ClusterNodes;

/// A slot whose keys move together is open for a moment only.
const TRIES_BEFORE_DROP: u32 = 2;

/// The backend for locks in a cluster.
pub(super) struct ClusterBackend {
    nodes: Arc<ClusterNodes>,
}

impl ClusterBackend {
    /// Reads the slot map from the first node of the URL that replies, and checks the settings of the owners.
    pub(super) async fn begin(nodes: ClusterNodes, limit: Duration) -> Result<Self, LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let nodes = Arc::new(nodes);
        nodes.discover(deadline).await?;
        if nodes.confirms_grants() {
            nodes.probe_confirmers(deadline.left() / 2).await?;
        }
        Ok(Self { nodes })
    }
}

/// Runs a call on the node of a key until it has an outcome that no other node can better.
macro_rules! routed {
    ($call:expr, |$node:ident, $left:ident| $run:expr) => {{
        let mut call = $call;
        loop {
            let result = match call.target().await {
                Ok($node) => {
                    let $left = call.left();
                    $run.await
                }
                Err(error) => Err(error),
            };
            match result {
                Err(error) => {
                    if let Err(error) = call.follow(error).await {
                        break Err(error);
                    }
                }
                outcome => break outcome,
            }
        }
    }};
}
use routed;

async fn renew_one(
    nodes: &Arc<ClusterNodes>,
    renewal: &Renewal,
    limit: Duration,
) -> Result<RenewOutcome, LockError> {
    let one = std::slice::from_ref(renewal);
    let call = RoutedCall::begin(nodes, &renewal.key, limit);
    routed!(call, |node, left| async {
        let outcome = node.renew(one, left).await.pop();
        outcome.unwrap_or(Err(LockError::NoRuntime))
    })
}

async fn release_one(
    nodes: &Arc<ClusterNodes>,
    request: &ReleaseRequest,
    limit: Duration,
) -> Result<ReleaseOutcome, LockError> {
    let mut may_drop = request.key.dialect().scheme().is_none();
    let mut has_freed = false;
    let mut unconfirmed = None;
    let mut call = RoutedCall::begin_grant(nodes, &request.key, limit);
    loop {
        let result = match call.target().await {
            Ok(node) => node.release(request, call.left()).await,
            Err(error) => Err(error),
        };
        let error = match result {
            Err(error) => error,
            Ok(mut outcome) => {
                outcome.was_owner |= has_freed;
                return match unconfirmed {
                    // The caller knows whether the lock was valid, and repeats the release.
                    Some(error) if !outcome.was_owner => Err(error),
                    _ => Ok(outcome),
                };
            }
        };
        call.follow(error).await?;
        if may_drop && call.tries_again() >= TRIES_BEFORE_DROP {
            // The next holder must not wait for the end of the move.
            let dropped = drop_key(nodes, request, &mut unconfirmed, call.left()).await;
            if let Ok(was_owner) = dropped {
                (may_drop, has_freed) = (false, was_owner);
            }
        }
    }
}

/// Frees the key of a lock alone. Returns whether the lock had it. An error after which the key may be free goes to
/// `unconfirmed`.
async fn drop_key(
    nodes: &Arc<ClusterNodes>,
    request: &ReleaseRequest,
    unconfirmed: &mut Option<LockError>,
    limit: Duration,
) -> Result<bool, LockError> {
    let mut call = RoutedCall::begin(nodes, &request.key, limit);
    loop {
        let error = match call.target().await {
            Ok(node) => match node.free_key(request, call.left()).await {
                Ok(was_owner) => return Ok(was_owner),
                Err(error) => {
                    if may_have_run(&error) {
                        *unconfirmed = Some(error.clone());
                    }
                    error
                }
            },
            Err(error) => error,
        };
        call.follow(error).await?;
    }
}

/// Renews on all nodes side by side.
async fn renew_all(
    nodes: &Arc<ClusterNodes>,
    renewals: &[Renewal],
    limit: Duration,
) -> Vec<Result<RenewOutcome, LockError>> {
    let groups = Groups::of(nodes, renewals.iter().map(|renewal| &renewal.key));
    let mut batch = Batch::begin(renewals.len(), limit);
    for (owner, indexes) in groups.by_owner {
        let group: Vec<_> = indexes.iter().map(|at| renewals[*at].clone()).collect();
        batch.run_group(
            owner,
            indexes,
            async move |owner: Arc<ClusterNode>, deadline: Deadline| {
                Backend::renew(&owner.server, &group, deadline.left()).await
            },
        );
    }
    let alone = |at: usize, left| {
        let (nodes, renewal) = (Arc::clone(nodes), renewals[at].clone());
        async move { renew_one(&nodes, &renewal, left).await }
    };
    batch.finish(groups.ownerless, alone).await
}

/// As [`renew_all`].
async fn release_all(
    nodes: &Arc<ClusterNodes>,
    requests: &[&ReleaseRequest],
    limit: Duration,
) -> Vec<Result<ReleaseOutcome, LockError>> {
    nodes.use_now();
    let groups = Groups::of(nodes, requests.iter().map(|request| &request.key));
    let mut batch = Batch::begin(requests.len(), limit);
    for (owner, indexes) in groups.by_owner {
        let group: Vec<ReleaseRequest> = indexes.iter().map(|at| requests[*at].clone()).collect();
        batch.run_group(
            owner,
            indexes,
            async move |owner: Arc<ClusterNode>, deadline: Deadline| {
                let group: Vec<_> = group.iter().collect();
                match owner.know_epoch(deadline.left()).await {
                    Ok(()) => Backend::release_all(&owner.server, &group, deadline.left()).await,
                    Err(error) => group.iter().map(|_| Err(error.clone())).collect(),
                }
            },
        );
    }
    let alone = |at: usize, left| {
        let (nodes, request) = (Arc::clone(nodes), requests[at].clone());
        async move { release_one(&nodes, &request, left).await }
    };
    batch.finish(groups.ownerless, alone).await
}

impl Backend for ClusterBackend {
    fn clock(&self) -> Clock {
        Clock::System
    }

    fn acquire<'a>(
        &'a self,
        sent: &'a mut SentAcquires,
        limit: Duration,
    ) -> Boxed<'a, Result<AcquireOutcome, LockError>> {
        Box::pin(async move {
            let key = sent.key.clone();
            let call = RoutedCall::begin_grant(&self.nodes, &key, limit);
            routed!(call, |node, left| node.acquire(sent, left))
        })
    }

    fn acquire_set<'a>(
        &'a self,
        sent: Vec<&'a mut SentAcquires>,
        limit: Duration,
    ) -> Boxed<'a, SetOutcomes> {
        Box::pin(set::acquire(self, sent, limit))
    }

    fn release_set<'a>(
        &'a self,
        release_requests: &'a [&'a ReleaseRequest],
        limit: Duration,
    ) -> Boxed<'a, Vec<Result<ReleaseOutcome, LockError>>> {
        Box::pin(set::release(self, release_requests, limit))
    }

    fn renew<'a>(
        &'a self,
        renewals: &'a [Renewal],
        limit: Duration,
    ) -> Boxed<'a, Vec<Result<RenewOutcome, LockError>>> {
        Box::pin(renew_all(&self.nodes, renewals, limit))
    }

    fn release<'a>(
        &'a self,
        release_request: &'a ReleaseRequest,
        limit: Duration,
    ) -> Boxed<'a, Result<ReleaseOutcome, LockError>> {
        Box::pin(release_one(&self.nodes, release_request, limit))
    }

    fn can_batch_release(&self, key: &LockKey) -> bool {
        key.dialect()
            .scheme()
            .is_none_or(lock_protocol::dialect::Scheme::releases_by_script)
    }

    fn release_all<'a>(
        &'a self,
        release_requests: &'a [&'a ReleaseRequest],
        limit: Duration,
    ) -> Boxed<'a, Vec<Result<ReleaseOutcome, LockError>>> {
        Box::pin(release_all(&self.nodes, release_requests, limit))
    }

    fn admin(&self) -> &dyn AdminBackend {
        self
    }

    fn seems_down(&self) -> bool {
        let nodes = self.nodes.known();
        !nodes.is_empty() && nodes.iter().all(|node| node.server.seems_down())
    }

    fn is_connected(&self) -> bool {
        self.nodes
            .known()
            .iter()
            .any(|node| node.server.is_connected())
    }

    fn status(&self) -> BackendStatus {
        let known: Vec<_> = self.nodes.known();
        let all: Vec<_> = known.iter().map(|node| node.server.status()).collect();
        BackendStatus {
            connected: all.iter().any(|status| status.connected),
            subscribed: all.iter().any(|status| status.subscribed),
            last_reply: all.iter().filter_map(|status| status.last_reply).min(),
            server_version: all.into_iter().find_map(|status| status.server_version),
        }
    }

    /// A subscription is made when a slot has its first waiter. So this says whether one can be made.
    fn notifies_waiters<'a>(&'a self, key: &'a LockKey, limit: Duration) -> Boxed<'a, bool> {
        if !key.dialect().notifies_all_waiters() {
            return Box::pin(self.nodes.can_subscribe(limit));
        }
        Box::pin(async move {
            match self.nodes.owner(ClusterNodes::slot(key)) {
                Ok(owner) => owner.server.notifies_waiters(key, limit).await,
                Err(_unknown) => false,
            }
        })
    }

    fn wait_connected(&self, until: Moment) -> Boxed<'_, Result<(), LockError>> {
        Box::pin(self.wait_for_any(until))
    }

    fn listen(&self) -> Boxed<'_, ()> {
        let nodes = Arc::clone(&self.nodes);
        Box::pin(async move {
            tokio::join!(
                nodes.renew_logins(),
                Arc::clone(&nodes).keep_fresh(),
                nodes.keep_epochs(),
                nodes.listen_all()
            );
        })
    }

    fn server(&self) -> Option<Arc<ServerAddress>> {
        let first = self.nodes.owners().into_iter().next()?;
        first.server.server()
    }

    fn holds_without_renewal(&self) -> bool {
        false
    }

    fn confirms_grants(&self) -> bool {
        self.nodes.confirms_grants()
    }
}

impl ClusterBackend {
    /// Waits for a connection to any node.
    async fn wait_for_any(&self, until: Moment) -> Result<(), LockError> {
        let mut waiting = JoinSet::new();
        for node in self.nodes.owners() {
            waiting.spawn(async move { node.server.wait_connected(until).await });
        }
        let mut outcome = Err(LockError::NoRuntime);
        while let Some(joined) = waiting.join_next().await {
            match joined {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(error)) => outcome = Err(error),
                Err(_ended) => {}
            }
        }
        outcome
    }
}
