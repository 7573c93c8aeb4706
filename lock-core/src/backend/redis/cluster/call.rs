//! One call to the node that serves a key, wherever the key is.

use std::sync::Arc;
use std::time::Duration;

use super::super::RedisBackend;
use super::super::place::NodeAddress;
use super::nodes::{ClusterNode, ClusterNodes};
use crate::error::{BackendErrorKind, LockError};
use lock_protocol::clock::{Clock, Deadline};
use lock_protocol::key::LockKey;
use lock_protocol::redirect::{Destination, Redirect};
use lock_protocol::route::{HashSlot, RouteAttempt, RouteEnd, RouteFailure, RouteStep};

/// How long a call waits for a connection to a node that seems to be down, before it asks for the owner again.
const CONNECTING: Duration = Duration::from_millis(100);

/// A call that follows what the nodes reply.
pub(super) struct RoutedCall<'a> {
    nodes: &'a Arc<ClusterNodes>,
    slot: HashSlot,
    deadline: Deadline,
    attempt: RouteAttempt,
    /// The node that a reply named, and whether the key is on its way to it.
    next: Option<(Arc<ClusterNode>, bool)>,
    current: Option<Arc<ClusterNode>>,
    tries_again: u32,
    /// Whether the node has to know its epoch.
    gives_tokens: bool,
    /// Whether the last node had a connection for the call.
    was_sent: bool,
}

/// The node that runs the call now.
pub(super) struct Target {
    node: Arc<ClusterNode>,
    is_asking: bool,
}

impl std::ops::Deref for Target {
    type Target = RedisBackend;

    fn deref(&self) -> &RedisBackend {
        if self.is_asking {
            &self.node.asking
        } else {
            &self.node.server
        }
    }
}

impl<'a> RoutedCall<'a> {
    pub(super) fn begin(nodes: &'a Arc<ClusterNodes>, key: &LockKey, limit: Duration) -> Self {
        let now = Clock::System.now();
        Self {
            nodes,
            slot: ClusterNodes::slot(key),
            deadline: Deadline::after(Clock::System, limit),
            attempt: RouteAttempt::new(now.plus(limit)),
            next: None,
            current: None,
            tries_again: 0,
            gives_tokens: false,
            was_sent: false,
        }
    }

    /// As [`begin`](Self::begin), for a call that may give out a fencing token.
    pub(super) fn begin_grant(
        nodes: &'a Arc<ClusterNodes>,
        key: &LockKey,
        limit: Duration,
    ) -> Self {
        nodes.use_now();
        Self {
            gives_tokens: true,
            ..Self::begin(nodes, key, limit)
        }
    }

    pub(super) fn left(&self) -> Duration {
        self.deadline.left()
    }

    /// How often the slot was found to be moving.
    pub(super) fn tries_again(&self) -> u32 {
        self.tries_again
    }

    /// Returns the node to send to.
    pub(super) async fn target(&mut self) -> Result<Target, LockError> {
        let (node, is_asking) = match self.next.take() {
            Some(next) => next,
            None => (self.nodes.owner(self.slot)?, false),
        };
        self.current = Some(Arc::clone(&node));
        let target = Target { node, is_asking };
        self.was_sent = false;
        wait_connected(&target, self.deadline).await?;
        self.was_sent = true;
        if self.gives_tokens {
            target.node.know_epoch(self.left()).await?;
        }
        Ok(target)
    }

    /// Decides what follows from an error. Returns it if no other node, and no pause, can help.
    pub(super) async fn follow(&mut self, error: LockError) -> Result<(), LockError> {
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
                self.tries_again += 1;
                tokio::time::sleep(pause).await;
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
        Ok(())
    }

    async fn resolve(&self, to: &Destination) -> Option<NodeAddress> {
        let current = self.current.as_ref()?;
        Some(self.nodes.resolve(current, to, self.left()).await)
    }
}

/// Waits for a connection to a node; only briefly if the node seems to be down. By then another node may own the slot.
pub(super) async fn wait_connected(
    node: &RedisBackend,
    deadline: Deadline,
) -> Result<(), LockError> {
    let pool = &node.client.pool;
    loop {
        let left = deadline.left();
        let connecting = Deadline::after(Clock::System, left.min(CONNECTING));
        let error = match pool.for_current_runtime(connecting).await {
            Ok(_connection) => return Ok(()),
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
pub(super) fn may_have_run(error: &LockError) -> bool {
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
