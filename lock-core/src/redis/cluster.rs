//! Keeps locks in a Redis Cluster.
//!
//! Each node is a server of its own, with its own connections, clocks and subscriptions. A call goes to
//! the node that owns the slot of the key, and follows what the nodes reply: another owner, a slot that
//! moves, a cluster that is down. The slot map is read again whenever a reply contradicts it.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinSet;

use self::refresh::FirstUse;
use crate::error::LockError;
use crate::store::{
    Boxed, Call, Reach, ScannedNode, Store, StoreStatus, StoreTraits, Together, check_runtime,
    ends_set, fail_all, supervised,
};
use crate::telemetry::ServerAddress;
use lock_protocol::backoff::{Backoff, Jitter};
use lock_protocol::clock::{Clock, Deadline, Moment};
use lock_protocol::inspection::{ScanPart, ScanPlace, ScanRequest};
use lock_protocol::key::LockKey;
use lock_protocol::op::{OpKind, Outcome};

#[cfg(feature = "__doctor")]
mod all_nodes;
mod batch;
mod call;
mod map;
mod names;
mod nodes;
mod refresh;

#[cfg(feature = "__doctor")]
pub(super) use all_nodes::{MapNode, add_others, nodes_of};
pub(super) use nodes::ClusterNodes;
#[cfg(feature = "__doctor")]
pub(super) use nodes::MAX_NODES;

/// Keeps locks in a cluster.
pub(super) struct ClusterStore {
    nodes: Arc<ClusterNodes>,
    traits: StoreTraits,
}

impl ClusterStore {
    /// Makes the store of a cluster whose slot map is read at the first use.
    pub(super) fn lazy(nodes: ClusterNodes) -> Self {
        let traits = nodes.traits();
        let nodes = Arc::new(nodes);
        Self { nodes, traits }
    }

    /// Reads the slot map from the first node of the URL that replies, and checks that the owners can acknowledge locks,
    /// if the manager wants that.
    pub(super) async fn begin(nodes: ClusterNodes, limit: Duration) -> Result<Self, LockError> {
        let deadline = Deadline::after(Clock::System, limit);
        let store = Self::lazy(nodes);
        store.nodes.discover(FirstUse::Connects, deadline).await?;
        if store.traits.confirms_grants {
            let limit = deadline.left() / 2;
            store.nodes.probe_confirmers(limit).await?;
        }
        Ok(store)
    }

    /// Acquires the locks of a set in order; neighbours in one slot go in one command. If one is refused, the earlier
    /// locks stay; in a single attempt they lose their outcomes, so that the caller releases them.
    async fn acquire_set(
        &self,
        calls: &mut [&mut Call<'_>],
        together: Together,
        deadline: Deadline,
    ) {
        let mut from = 0;
        while let Some(length) = run_length(&calls[from..]) {
            let run = &mut calls[from..from + length];
            call::run(&self.nodes, run, together, deadline).await;
            if ends_set(calls, from..from + length, together) {
                break;
            }
            from += length;
        }
    }

    /// Scans one node after the other, in the order of their addresses. A failover between two parts may change that
    /// order, so that a node is skipped or scanned twice.
    async fn scan(&self, request: &ScanRequest, deadline: Deadline) -> Result<ScanPart, LockError> {
        let (index, within) = node_at(request.at.as_ref());
        let within = within.cloned();
        let owners = self.nodes.owners();
        let Some(node) = owners.get(index) else {
            // There are fewer nodes than before.
            return Ok(ScanPart::default());
        };
        let request = request.from(within);
        let mut call = Call::new(OpKind::Scan(&request));
        let calls = &mut [&mut call];
        Store::call(&node.server, calls, Together::Each, deadline).await;
        let mut part = call.scanned()?;
        let index = index + usize::from(part.next.is_none());
        let within = part.next.map(Box::new);
        part.next = (index < owners.len()).then_some(ScanPlace::Server { index, within });
        Ok(part)
    }

    /// Waits until the slot map is known. A node may be up before the cluster is formed.
    async fn wait_for_map(&self, until: Moment) -> Result<(), LockError> {
        let deadline = Deadline::at(Clock::System, until);
        let mut pauses = Backoff::new(Jitter::from_os());
        loop {
            let Err(error) = self.nodes.know_map(deadline).await else {
                return Ok(());
            };
            let pause = pauses.pause();
            if !error.is_retryable() || pause >= deadline.left() {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Waits for a connection to any node.
    async fn wait_for_any(&self, until: Moment) -> Result<(), LockError> {
        let mut waiting = JoinSet::new();
        if self.nodes.membership.is_new() {
            return self.wait_for_map(until).await;
        }
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

/// Returns the number of the node at this place of a scan, and the place on it.
fn node_at(at: Option<&ScanPlace>) -> (usize, Option<&ScanPlace>) {
    match at {
        Some(ScanPlace::Server { index, within }) => (*index, within.as_deref()),
        _ => (0, None),
    }
}

/// Returns how many calls at the beginning have the slot of the first one; `None` without calls.
fn run_length(calls: &[&mut Call<'_>]) -> Option<usize> {
    let slot = |call: &&mut Call<'_>| call.op.key().map(ClusterNodes::slot);
    let first = slot(calls.first()?);
    Some(calls.iter().take_while(|call| slot(call) == first).count())
}

impl Store for ClusterStore {
    fn traits(&self) -> &StoreTraits {
        &self.traits
    }

    fn call<'a, 'c: 'a, 'o: 'c>(
        &'a self,
        calls: &'a mut [&'c mut Call<'o>],
        together: Together,
        deadline: Deadline,
    ) -> Boxed<'a, ()> {
        if let Err(error) = check_runtime() {
            fail_all(calls, &error);
            return Box::pin(std::future::ready(()));
        }
        if self.nodes.membership.is_new() {
            return Box::pin(async move {
                match self.nodes.know_map(deadline).await {
                    Ok(()) => self.call(calls, together, deadline).await,
                    Err(error) => fail_all(calls, &error),
                }
            });
        }
        if let Some(OpKind::Scan(request)) = calls.first().map(|call| &call.op.kind) {
            let request: &ScanRequest = request;
            return Box::pin(async move {
                let part = self.scan(request, deadline).await;
                calls[0].outcome = Some(part.map(|part| Outcome::Scanned(Box::new(part))));
            });
        }
        match calls.len() {
            1 => Box::pin(call::run(&self.nodes, calls, together, deadline)),
            _ if together == Together::Each => Box::pin(batch::run(&self.nodes, calls, deadline)),
            _ => Box::pin(self.acquire_set(calls, together, deadline)),
        }
    }

    fn scanned_node(&self, at: Option<&ScanPlace>) -> Option<ScannedNode> {
        let (index, _) = node_at(at);
        let node = self.nodes.owners().into_iter().nth(index)?;
        Some(ScannedNode {
            address: node.address.to_string(),
            next: ScanPlace::Server {
                index: index + 1,
                within: None,
            },
        })
    }

    fn joins_batches(&self, key: &LockKey) -> bool {
        batch::joins_batches(key)
    }

    fn reach(&self) -> Reach {
        let nodes = self.nodes.known();
        let mut is_down = !nodes.is_empty();
        for node in nodes {
            match node.server.reach() {
                Reach::Connected => return Reach::Connected,
                Reach::NotYet => is_down = false,
                Reach::Down => {}
            }
        }
        if is_down { Reach::Down } else { Reach::NotYet }
    }

    fn status(&self) -> StoreStatus {
        let known: Vec<_> = self.nodes.known();
        let all: Vec<_> = known.iter().map(|node| node.server.status()).collect();
        StoreStatus {
            connected: all.iter().any(|status| status.connected),
            was_connected: self.nodes.was_reached(),
            subscribed: all.iter().any(|status| status.subscribed),
            polling: all.iter().find_map(|status| status.polling),
            last_reply: all.iter().filter_map(|status| status.last_reply).min(),
            server_version: all.into_iter().find_map(|status| status.server_version),
        }
    }

    fn server(&self) -> Option<Arc<ServerAddress>> {
        let owners = self.nodes.owners().into_iter();
        let first = owners.chain(self.nodes.seeds()).next()?;
        first.server.server()
    }

    /// Returns whether a subscription can be made; it is made when a slot has its first waiter.
    fn notifies<'a>(&'a self, key: &'a LockKey, limit: Duration) -> Boxed<'a, bool> {
        if !key.dialect().notifies_all_waiters() {
            return Box::pin(self.nodes.can_subscribe(limit));
        }
        Box::pin(async move {
            match self.nodes.owner(ClusterNodes::slot(key)) {
                Ok(owner) => owner.server.notifies(key, limit).await,
                Err(_unknown) => false,
            }
        })
    }

    fn wait_connected(&self, until: Moment) -> Boxed<'_, Result<(), LockError>> {
        Box::pin(self.wait_for_any(until))
    }

    fn driven_by(&self, worker: &Handle) {
        self.nodes.driven_by(worker);
    }

    fn listen(&self) -> Boxed<'_, ()> {
        let nodes = &self.nodes;
        Box::pin(async move {
            let reporter = &nodes.reporter;
            tokio::join!(
                supervised(reporter, || Box::pin(nodes.renew_logins())),
                supervised(reporter, || Box::pin(nodes.watch_client_certificate())),
                supervised(reporter, || Box::pin(Arc::clone(nodes).keep_fresh())),
                supervised(reporter, || Box::pin(nodes.keep_epochs())),
                supervised(reporter, || Box::pin(nodes.close_idle())),
                supervised(reporter, || Box::pin(nodes.listen_all()))
            );
        })
    }
}
