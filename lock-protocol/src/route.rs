//! The slots of a Redis Cluster, their owners, and the steps of a call that looks for its key.

use std::time::Duration;

use crate::clock::Moment;
use crate::redirect::{Destination, Redirect};

mod freeing;
#[cfg(test)]
mod properties;
mod slots;
mod view;

pub use freeing::{Freeing, FreeingStep, KeyFreed, ReleaseEnd};
pub use slots::{HashSlot, SLOTS, SlotMap, channel_tag, slot_of};
pub use view::ClusterView;

/// How many redirections a call follows at once. More of them come from nodes that contradict each other.
const REDIRECTIONS: u32 = 5;
/// The pauses of a call whose slot moves.
const MOVING: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(50));
/// The pauses of a call whose node does not work.
const DOWN: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(50));

/// Why a node did not run a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteFailure {
    Redirected(Redirect),
    /// The node cannot be reached, or is no primary.
    Unreachable,
    /// The node did not reply in time.
    TimedOut,
}

/// What the call does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteStep {
    /// Record the owner of the slot, and go there.
    Move(Destination),
    /// Go there once.
    Ask(Destination),
    /// Try again after this pause.
    Pause(Duration),
    /// Read the slot map, and try again after this pause.
    PauseAndRefresh(Duration),
    GiveUp(RouteEnd),
}

/// Why a call ends without an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteEnd {
    SlotMoving,
    ClusterDown,
    /// The error of the node says more.
    NodeFailed,
}

/// The steps of one call.
#[derive(Clone, Debug)]
pub struct RouteAttempt {
    deadline: Moment,
    redirections: u32,
    moving: Duration,
    down: Duration,
}

impl RouteAttempt {
    pub fn new(deadline: Moment) -> Self {
        Self {
            deadline,
            redirections: 0,
            moving: MOVING.0,
            down: DOWN.0,
        }
    }

    /// Returns what to do after a failure. No pause ends after the deadline.
    pub fn after(&mut self, failure: RouteFailure, now: Moment) -> RouteStep {
        let reason = match &failure {
            RouteFailure::Redirected(Redirect::Down) => RouteEnd::ClusterDown,
            RouteFailure::Redirected(_) => RouteEnd::SlotMoving,
            RouteFailure::Unreachable | RouteFailure::TimedOut => RouteEnd::NodeFailed,
        };
        let left = self.deadline.since(now);
        if left.is_zero() || failure == RouteFailure::TimedOut {
            return RouteStep::GiveUp(reason);
        }
        let step = match failure {
            RouteFailure::Redirected(Redirect::Moved(to)) if self.may_follow() => {
                RouteStep::Move(to)
            }
            RouteFailure::Redirected(Redirect::Ask(to)) if self.may_follow() => RouteStep::Ask(to),
            RouteFailure::Redirected(Redirect::TryAgain) => {
                RouteStep::Pause(longer(&mut self.moving, MOVING.1))
            }
            _ => {
                // After the pause, redirections are followed again.
                self.redirections = 0;
                RouteStep::PauseAndRefresh(longer(&mut self.down, DOWN.1))
            }
        };
        match step {
            RouteStep::Pause(pause) | RouteStep::PauseAndRefresh(pause) if pause >= left => {
                RouteStep::GiveUp(reason)
            }
            step => step,
        }
    }

    fn may_follow(&mut self) -> bool {
        self.redirections += 1;
        self.redirections <= REDIRECTIONS
    }
}

/// Returns a pause, and doubles it for the next time.
fn longer(pause: &mut Duration, longest: Duration) -> Duration {
    let now = *pause;
    *pause = (now * 2).min(longest);
    now
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_millis(ms)
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn there() -> Destination {
        Destination {
            slot: 7,
            host: "h".into(),
            port: 1,
        }
    }

    fn moved() -> RouteFailure {
        RouteFailure::Redirected(Redirect::Moved(there()))
    }

    #[test]
    fn redirection_is_followed_at_once_five_times() {
        let mut call = RouteAttempt::new(at(1_000));
        for _ in 0..REDIRECTIONS {
            assert_eq!(call.after(moved(), at(0)), RouteStep::Move(there()));
        }
        let paused = call.after(moved(), at(0));
        assert_eq!(paused, RouteStep::PauseAndRefresh(ms(10)));
        assert_eq!(call.after(moved(), at(0)), RouteStep::Move(there()));
        let ask = RouteFailure::Redirected(Redirect::Ask(there()));
        assert_eq!(call.after(ask, at(0)), RouteStep::Ask(there()));
    }

    #[test]
    fn moving_slot_is_tried_with_growing_pauses_until_the_deadline() {
        let mut call = RouteAttempt::new(at(1_000));
        let again = RouteFailure::Redirected(Redirect::TryAgain);
        for pause in [2, 4, 8, 16, 32, 50, 50] {
            let step = call.after(again.clone(), at(0));
            assert_eq!(step, RouteStep::Pause(ms(pause)));
        }
        let step = call.after(again.clone(), at(949));
        assert_eq!(step, RouteStep::Pause(ms(50)));
        let gives_up = RouteStep::GiveUp(RouteEnd::SlotMoving);
        assert_eq!(call.after(again.clone(), at(950)), gives_up);
        assert_eq!(call.after(again, at(2_000)), gives_up);
    }

    #[test]
    fn failed_node_makes_the_map_be_read() {
        let mut call = RouteAttempt::new(at(100));
        let down = RouteFailure::Redirected(Redirect::Down);
        let step = call.after(down.clone(), at(0));
        assert_eq!(step, RouteStep::PauseAndRefresh(ms(10)));
        let step = call.after(RouteFailure::Unreachable, at(10));
        assert_eq!(step, RouteStep::PauseAndRefresh(ms(20)));
        let step = call.after(RouteFailure::Unreachable, at(99));
        assert_eq!(step, RouteStep::GiveUp(RouteEnd::NodeFailed));
        let step = call.after(down, at(99));
        assert_eq!(step, RouteStep::GiveUp(RouteEnd::ClusterDown));
    }

    #[test]
    fn call_without_a_reply_is_not_sent_to_another_node() {
        let mut call = RouteAttempt::new(at(1_000));
        let step = call.after(RouteFailure::TimedOut, at(0));
        assert_eq!(step, RouteStep::GiveUp(RouteEnd::NodeFailed));
    }
}
