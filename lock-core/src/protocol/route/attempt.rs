//! What one call does after a node refused it or did not reply.

use std::time::Duration;

use super::redirect::{Redirect, RedirectText};
use crate::protocol::backoff::{Backoff, Jitter};
use crate::protocol::clock::Moment;

/// Redirects that a call follows without a pause. More mean that the nodes do not agree yet.
const REDIRECTS_AT_ONCE: u32 = 5;
/// The first pause for what takes the cluster a moment: an open slot, a broken connection.
const SHORT_PAUSE: Duration = Duration::from_millis(2);
/// The first pause for what takes the cluster longer: an election, nodes that do not agree.
const PAUSE: Duration = Duration::from_millis(10);
/// The longest pause. A call notices soon that the cluster serves the slot again.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Why a node did not run the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RouteFailure {
    /// `MOVED`: another node owns the slot.
    Moved(Redirect),
    /// `ASK`: this call's keys are at the node that imports the slot.
    Ask(Redirect),
    /// `TRYAGAIN`: the slot is on its way, and some keys are at each node.
    TryAgain,
    /// `CLUSTERDOWN`: no node serves the slot.
    ClusterDown,
    /// The connection was refused or broken, or no node is known.
    Unreachable,
    /// The node did not reply in time. The caller decides whether the call may be sent again.
    TimedOut,
}

impl From<RedirectText> for RouteFailure {
    fn from(text: RedirectText) -> Self {
        match text {
            RedirectText::Moved(to) => Self::Moved(to),
            RedirectText::Ask(to) => Self::Ask(to),
        }
    }
}

/// What the caller does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RouteStep {
    /// Make this node the slot's owner in the map, refresh the map in the background, and send the
    /// call there after the pause. The first five redirects of a call have no pause.
    Moved { to: Redirect, pause: Duration },
    /// Send `ASKING` and the call to this node in one pipeline after the pause. The map stays.
    Ask { to: Redirect, pause: Duration },
    /// Send the call again after this pause.
    Pause(Duration),
    /// Refresh the map, from another node than the one that failed, and send the call again after
    /// this pause.
    PauseAndRefresh(Duration),
    /// Return an error.
    GiveUp(RouteGiveUpReason),
}

/// The failure for which a call gives up: its last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RouteGiveUpReason {
    /// The nodes sent the call from one to another until its deadline.
    Redirected,
    SlotMoving,
    ClusterDown,
    Unreachable,
    TimedOut,
}

/// The failures of one call, up to its deadline.
#[derive(Clone, Debug)]
pub(crate) struct RouteAttempt {
    deadline: Moment,
    redirects: u32,
    try_agains: u32,
    redirected: Backoff,
    slot_moving: Backoff,
    cluster_down: Backoff,
    unreachable: Backoff,
}

impl RouteAttempt {
    /// Begins a call at `now` that has to end by `deadline`. The jitter of its pauses depends on `now`.
    pub(crate) fn new(now: Moment, deadline: Moment) -> Self {
        let mut jitter = Jitter::seeded(now.as_nanos());
        let mut pauses = |first| Backoff::between(first, LONGEST_PAUSE, jitter.fork());
        Self {
            deadline,
            redirects: 0,
            try_agains: 0,
            redirected: pauses(PAUSE),
            slot_moving: pauses(SHORT_PAUSE),
            cluster_down: pauses(PAUSE),
            unreachable: pauses(SHORT_PAUSE),
        }
    }

    /// Returns what to do after this failure. The pause of a step always ends before the deadline.
    pub(crate) fn after(&mut self, failure: RouteFailure, now: Moment) -> RouteStep {
        let (reason, pause) = match failure {
            RouteFailure::Moved(_) | RouteFailure::Ask(_) => {
                (RouteGiveUpReason::Redirected, self.pause_of_redirect())
            }
            RouteFailure::TryAgain => {
                self.try_agains = self.try_agains.saturating_add(1);
                (RouteGiveUpReason::SlotMoving, self.slot_moving.pause())
            }
            RouteFailure::ClusterDown => {
                (RouteGiveUpReason::ClusterDown, self.cluster_down.pause())
            }
            RouteFailure::Unreachable => (RouteGiveUpReason::Unreachable, self.unreachable.pause()),
            RouteFailure::TimedOut => (RouteGiveUpReason::TimedOut, self.unreachable.pause()),
        };
        if now.plus(pause) >= self.deadline {
            return RouteStep::GiveUp(reason);
        }
        match failure {
            RouteFailure::Moved(to) => RouteStep::Moved { to, pause },
            RouteFailure::Ask(to) => RouteStep::Ask { to, pause },
            RouteFailure::TryAgain => RouteStep::Pause(pause),
            RouteFailure::ClusterDown | RouteFailure::Unreachable | RouteFailure::TimedOut => {
                RouteStep::PauseAndRefresh(pause)
            }
        }
    }

    /// How often a node said `TRYAGAIN`. After two a release frees the key first.
    pub(crate) fn try_agains(&self) -> u32 {
        self.try_agains
    }

    fn pause_of_redirect(&mut self) -> Duration {
        self.redirects = self.redirects.saturating_add(1);
        if self.redirects <= REDIRECTS_AT_ONCE {
            Duration::ZERO
        } else {
            self.redirected.pause()
        }
    }
}

#[cfg(test)]
mod tests;
