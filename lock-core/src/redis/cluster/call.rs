//! Calls to the node that serves a slot, wherever the slot is.

use std::sync::Arc;
use std::time::Duration;

use super::super::connection::Connection;
use super::super::deployment::NodeAddress;
use super::super::single::RedisStore;
use super::nodes::{ClusterNode, ClusterNodes};
use crate::error::{BackendErrorKind, LockError};
use crate::store::{Call, Store, Together};
use lock_protocol::cleanup::ReleaseRequest;
use lock_protocol::clock::{Clock, Deadline};
use lock_protocol::op::{OpKind, Outcome};
use lock_protocol::redirect::{Destination, Redirect};
use lock_protocol::route::{
    Freeing, FreeingStep, HashSlot, KeyFreed, ReleaseEnd, RouteAttempt, RouteEnd, RouteFailure,
    RouteStep,
};

/// How long a call waits for a connection to a node that seems to be down, before it asks for the owner again.
const CONNECTING: Duration = Duration::from_millis(100);

/// Runs calls whose keys are in one slot, and follows the replies of the nodes until no other node can help. If the first
/// call of a set fails, no lock of it was acquired.
pub(super) async fn run(
    nodes: &Arc<ClusterNodes>,
    calls: &mut [&mut Call<'_>],
    together: Together,
    deadline: Deadline,
) {
    if let [call] = calls
        && let OpKind::Release(request) = call.op.kind
    {
        return Box::pin(release(nodes, call, request, deadline)).await;
    }
    let Some(mut routed) = calls
        .first()
        .and_then(|first| RoutedCall::begin(nodes, first, deadline))
    else {
        return;
    };
    loop {
        let error = match routed.target().await {
            Ok(node) => {
                Store::call(&*node, calls, together, deadline).await;
                match calls[0].error() {
                    Some(error) => error.clone(),
                    None => return,
                }
            }
            Err(error) => error,
        };
        if let Err(error) = routed.follow(error).await {
            calls[0].outcome = Some(Err(error));
            return;
        }
        for call in &mut *calls {
            call.begin_again();
        }
    }
}

/// Releases a lock, also while its slot moves.
async fn release(
    nodes: &Arc<ClusterNodes>,
    call: &mut Call<'_>,
    request: &ReleaseRequest,
    deadline: Deadline,
) {
    let mut freeing = Freeing::new(request.key.dialect().scheme().is_none());
    // Why it isn't known whether the key was freed.
    let mut unknown = None;
    let Some(mut routed) = RoutedCall::begin(nodes, call, deadline) else {
        return;
    };
    loop {
        let error = match routed.target().await {
            Ok(node) => {
                let calls = &mut [&mut *call];
                Store::call(&*node, calls, Together::Each, deadline).await;
                match &mut call.outcome {
                    Some(Ok(Outcome::Released(outcome))) => {
                        match freeing.ended(outcome.was_owner) {
                            ReleaseEnd::Known { was_owner } => outcome.was_owner = was_owner,
                            ReleaseEnd::Unknown => {
                                let error = unknown.unwrap_or_else(LockError::unreadable);
                                call.outcome = Some(Err(error));
                            }
                        }
                        return;
                    }
                    Some(Err(error)) => error.clone(),
                    _ => return,
                }
            }
            Err(error) => error,
        };
        match routed.follow(error).await {
            Ok(Followed::SlotMoves) => freeing.slot_moves(),
            Ok(Followed::TriesAgain) => {}
            Err(error) => {
                call.outcome = Some(Err(error));
                return;
            }
        }
        call.begin_again();
        if freeing.next() == FreeingStep::FreeKey {
            let freed = free_key(nodes, request, &mut freeing, deadline).await;
            unknown = freed.err().or(unknown);
        }
    }
}

/// Frees the key of a lock alone. Returns the error of a try without a reply, which may have freed the key.
async fn free_key(
    nodes: &Arc<ClusterNodes>,
    request: &ReleaseRequest,
    freeing: &mut Freeing,
    deadline: Deadline,
) -> Result<(), LockError> {
    let mut unknown = Ok(());
    let mut call = Call::new(OpKind::FreeKey(request));
    let Some(mut routed) = RoutedCall::begin(nodes, &call, deadline) else {
        return unknown;
    };
    loop {
        let error = match routed.target().await {
            Ok(node) => {
                let calls = &mut [&mut call];
                Store::call(&*node, calls, Together::Each, deadline).await;
                match &call.outcome {
                    Some(Ok(Outcome::KeyFreed { was_owner })) => {
                        let was_owner = *was_owner;
                        freeing.freed(KeyFreed::Done { was_owner });
                        return unknown;
                    }
                    Some(Err(error)) => {
                        if may_have_run(error) {
                            freeing.freed(KeyFreed::Unknown);
                            unknown = Err(error.clone());
                        }
                        error.clone()
                    }
                    _ => return unknown,
                }
            }
            Err(error) => error,
        };
        if routed.follow(error).await.is_err() {
            return unknown;
        }
        call.begin_again();
    }
}

/// A call that follows what the nodes reply.
struct RoutedCall<'a> {
    nodes: &'a Arc<ClusterNodes>,
    slot: HashSlot,
    deadline: Deadline,
    attempt: RouteAttempt,
    /// The node that a reply named, and whether the key is on its way to it.
    next: Option<(Arc<ClusterNode>, bool)>,
    current: Option<Arc<ClusterNode>>,
    /// Whether the node has to know its epoch.
    gives_tokens: bool,
    /// Whether the last node was ready, so that the call may have been sent.
    was_sent: bool,
}

/// What was done about an error of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Followed {
    /// The slot moves, so the call waited for it.
    SlotMoves,
    /// Another node runs the call, or the same one after a pause.
    TriesAgain,
}

/// The node that runs the call now.
struct Target {
    node: Arc<ClusterNode>,
    is_asking: bool,
}

impl std::ops::Deref for Target {
    type Target = RedisStore;

    fn deref(&self) -> &RedisStore {
        if self.is_asking {
            &self.node.asking
        } else {
            &self.node.server
        }
    }
}

impl<'a> RoutedCall<'a> {
    /// Begins with the owner of the slot. Returns `None` for a call without a key.
    fn begin(nodes: &'a Arc<ClusterNodes>, call: &Call<'_>, deadline: Deadline) -> Option<Self> {
        let slot = call.op.key().map(ClusterNodes::slot)?;
        let gives_tokens = may_give_tokens(&call.op.kind);
        if gives_tokens {
            nodes.use_now();
        }
        Some(Self {
            nodes,
            slot,
            deadline,
            attempt: RouteAttempt::new(Clock::System.now().plus(deadline.left())),
            next: None,
            current: None,
            gives_tokens,
            was_sent: false,
        })
    }

    /// Returns the node to send to.
    async fn target(&mut self) -> Result<Target, LockError> {
        let (node, is_asking) = match self.next.take() {
            Some(next) => next,
            None => (self.nodes.owner(self.slot)?, false),
        };
        self.current = Some(Arc::clone(&node));
        let target = Target { node, is_asking };
        self.was_sent = false;
        let _connection = connected(&target, self.deadline).await?;
        if self.gives_tokens {
            target.node.know_epoch(self.deadline.left()).await?;
        }
        self.was_sent = true;
        Ok(target)
    }

    /// Decides the next step after an error. Returns the error if neither another node nor a pause helps.
    async fn follow(&mut self, error: LockError) -> Result<Followed, LockError> {
        let failure = if self.was_sent {
            failure_of(&error)
        } else {
            // Another node may run the call, also if this one did not reply.
            error.is_retryable().then(|| unsent(&error))
        };
        let Some(failure) = failure else {
            return Err(error);
        };
        let step = self.attempt.after(failure, Clock::System.now());
        match step {
            RouteStep::Move(to) => {
                let address = self.resolve(&to).await;
                if let Some(address) = address {
                    self.nodes.set_owner(to.slot, address);
                }
            }
            RouteStep::Ask(to) => {
                let address = self.resolve(&to).await;
                self.next = address.map(|address| (self.nodes.node(&address), true));
            }
            RouteStep::Pause(pause) => {
                tokio::time::sleep(pause).await;
                return Ok(Followed::SlotMoves);
            }
            RouteStep::PauseAndRefresh(pause) => {
                self.nodes.want_refresh();
                tokio::time::sleep(pause).await;
            }
            RouteStep::GiveUp(reason) => {
                self.nodes.want_refresh();
                return Err(given_up(reason, error));
            }
        }
        Ok(Followed::TriesAgain)
    }

    async fn resolve(&self, to: &Destination) -> Option<NodeAddress> {
        let current = self.current.as_ref()?;
        let address = self.nodes.resolve(current, to, self.deadline.left()).await;
        self.nodes.has_room_for(&address).then_some(address)
    }
}

/// Returns whether the operation may give out a fencing token (a release does so by a handover), so that its node has to
/// know the epoch.
pub(super) fn may_give_tokens(kind: &OpKind<'_>) -> bool {
    matches!(
        kind,
        OpKind::Acquire(_) | OpKind::Release(_) | OpKind::Force(_)
    )
}

/// Waits for a connection to a node; only briefly if the node seems to be down. By then another node may own the slot.
pub(super) async fn connected(
    node: &RedisStore,
    deadline: Deadline,
) -> Result<Arc<Connection>, LockError> {
    let pool = &node.client.pool;
    loop {
        let left = deadline.left();
        let connecting = Deadline::after(Clock::System, left.min(CONNECTING));
        let error = match pool.for_current_runtime(connecting).await {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        if left <= CONNECTING || pool.seems_down() || !error.is_retryable() {
            return Err(error);
        }
    }
}

/// Returns what an error says about a call that no node has got.
fn unsent(error: &LockError) -> RouteFailure {
    match failure_of(error) {
        Some(RouteFailure::TimedOut) | None => RouteFailure::Unreachable,
        Some(failure) => failure,
    }
}

/// Returns whether another node, or the same one a moment later, may run the command.
pub(super) fn is_about_route(error: &LockError) -> bool {
    failure_of(error).is_some_and(|failure| !matches!(failure, RouteFailure::TimedOut))
}

/// Returns whether the command may have run, and only its reply is missing.
fn may_have_run(error: &LockError) -> bool {
    let LockError::Backend(backend) = error else {
        return false;
    };
    let kind = backend.kind();
    matches!(
        kind,
        BackendErrorKind::Unreachable | BackendErrorKind::TimedOut
    )
}

/// Returns what an error says about the place of the key; `None` if it says nothing.
fn failure_of(error: &LockError) -> Option<RouteFailure> {
    let LockError::Backend(backend) = error else {
        return None;
    };
    if let Some(redirect) = backend.redirect() {
        return Some(RouteFailure::Redirected(redirect.clone()));
    }
    match backend.kind() {
        BackendErrorKind::ClusterDown => Some(RouteFailure::Redirected(Redirect::Down)),
        BackendErrorKind::Unreachable | BackendErrorKind::NotPrimary => {
            Some(RouteFailure::Unreachable)
        }
        BackendErrorKind::TimedOut => Some(RouteFailure::TimedOut),
        _ => None,
    }
}

/// Returns the error of a call that ran out of time.
fn given_up(reason: RouteEnd, error: LockError) -> LockError {
    match reason {
        RouteEnd::SlotMoving => LockError::caused(
            BackendErrorKind::SlotMoving,
            "the slot of the lock moves to another node",
            error,
        ),
        RouteEnd::ClusterDown => LockError::caused(
            BackendErrorKind::ClusterDown,
            "the cluster does not serve the slot of the lock",
            error,
        ),
        RouteEnd::NodeFailed => error,
    }
}
