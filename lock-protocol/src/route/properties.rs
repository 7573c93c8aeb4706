//! What is true of all calls that look for their key.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Long enough for many pauses.
const LONGEST_LIMIT: u64 = 2_000;

/// The number of a reply, so that no two replies name the same node.
fn destination(number: u16) -> Destination {
    Destination {
        slot: number % SLOTS,
        host: format!("host-{number}"),
        port: number,
    }
}

/// All failures but those without a reply, after which no call goes on.
fn failure() -> impl Strategy<Value = RouteFailure> {
    let redirected = |redirect: Redirect| RouteFailure::Redirected(redirect);
    prop_oneof![
        any::<u16>().prop_map(move |it| redirected(Redirect::Moved(destination(it)))),
        any::<u16>().prop_map(move |it| redirected(Redirect::Ask(destination(it)))),
        Just(redirected(Redirect::TryAgain)),
        Just(redirected(Redirect::Down)),
        Just(RouteFailure::Unreachable),
    ]
}

/// Failures with the times in milliseconds that their replies took. Many take no time.
fn failures() -> impl Strategy<Value = Vec<(RouteFailure, u64)>> {
    let took = prop_oneof![3 => Just(0), 2 => 0..5_u64, 1 => 0..200_u64];
    vec((failure(), took), 1..40)
}

fn pause_of(step: &RouteStep) -> Option<Duration> {
    match step {
        RouteStep::Pause(pause) | RouteStep::PauseAndRefresh(pause) => Some(*pause),
        RouteStep::Move(_) | RouteStep::Ask(_) | RouteStep::GiveUp(_) => None,
    }
}

fn end_of(failure: &RouteFailure) -> RouteEnd {
    match failure {
        RouteFailure::Redirected(Redirect::Down) => RouteEnd::ClusterDown,
        RouteFailure::Redirected(_) => RouteEnd::SlotMoving,
        RouteFailure::Unreachable | RouteFailure::TimedOut => RouteEnd::NodeFailed,
    }
}

/// Answers a call with these failures, in a circle, until it gives up. Returns each failure, the time that the call
/// had left then, and the step. The time passes only by the replies and the pauses.
fn steps_of(
    limit: u64,
    failures: &[(RouteFailure, u64)],
) -> Vec<(RouteFailure, Duration, RouteStep)> {
    let deadline = Moment::from_millis(limit);
    let mut call = RouteAttempt::new(deadline);
    let mut now = Moment::from_millis(0);
    let mut steps = Vec::new();
    for (failure, took) in failures.iter().cycle() {
        now = now.plus(Duration::from_millis(*took));
        let step = call.after(failure.clone(), now);
        steps.push((failure.clone(), deadline.since(now), step.clone()));
        if matches!(step, RouteStep::GiveUp(_)) {
            break;
        }
        now = now.plus(pause_of(&step).unwrap_or_default());
        // Each pause is 2 ms at least, and at most five redirections are between two pauses.
        let bound = usize::try_from(limit).expect("the limit is small") * 3 + 12;
        assert!(steps.len() <= bound, "the call does not end");
    }
    steps
}

proptest! {
    /// Replies that take no time are the worst case: only the pauses bring the call to its end.
    #[test]
    fn call_ends_within_its_limit(limit in 0..LONGEST_LIMIT, failures in failures()) {
        for (_, left, step) in steps_of(limit, &failures) {
            if let Some(pause) = pause_of(&step) {
                prop_assert!(pause < left, "{pause:?} of {left:?}");
            }
            if left.is_zero() {
                prop_assert!(matches!(step, RouteStep::GiveUp(_)), "{step:?}");
            }
        }
    }

    #[test]
    fn call_does_not_end_while_time_is_left_for_a_pause(
        limit in 0..LONGEST_LIMIT,
        failures in failures(),
    ) {
        for (failure, left, step) in steps_of(limit, &failures) {
            if let RouteStep::GiveUp(end) = step {
                prop_assert!(left <= MOVING.1.max(DOWN.1), "{left:?} left");
                prop_assert_eq!(end, end_of(&failure));
            }
        }
    }

    #[test]
    fn no_more_than_five_redirections_come_without_a_pause(
        limit in 0..LONGEST_LIMIT,
        failures in failures(),
    ) {
        let mut in_a_row = 0;
        for (_, _, step) in steps_of(limit, &failures) {
            in_a_row = if pause_of(&step).is_some() { 0 } else { in_a_row + 1 };
            let is_end = matches!(step, RouteStep::GiveUp(_));
            prop_assert!(in_a_row <= REDIRECTIONS || is_end, "{in_a_row}");
        }
    }

    /// The map changes by MOVED only, and the node of an ASK gets one call only. A slot that moves needs no new map.
    #[test]
    fn step_is_that_of_the_reply(limit in 0..LONGEST_LIMIT, failures in failures()) {
        for (failure, _, step) in steps_of(limit, &failures) {
            let is_right = match (&failure, &step) {
                (_, RouteStep::GiveUp(_)) => true,
                (RouteFailure::Redirected(Redirect::Moved(told)), RouteStep::Move(to))
                | (RouteFailure::Redirected(Redirect::Ask(told)), RouteStep::Ask(to)) => told == to,
                (RouteFailure::Redirected(Redirect::TryAgain), step) => {
                    matches!(step, RouteStep::Pause(_))
                }
                // A redirection that is not followed, or a node that does not serve.
                (_, step) => matches!(step, RouteStep::PauseAndRefresh(_)),
            };
            prop_assert!(is_right, "{failure:?}: {step:?}");
        }
    }

    /// A redirection after a pause with a new map is followed, whatever came before.
    #[test]
    fn redirection_after_a_new_map_is_followed(limit in 0..LONGEST_LIMIT, failures in failures()) {
        let steps = steps_of(limit, &failures);
        for pair in steps.windows(2) {
            let [(_, _, before), (failure, left, step)] = pair else {
                panic!("a window has two steps");
            };
            let is_redirected = matches!(
                failure,
                RouteFailure::Redirected(Redirect::Moved(_) | Redirect::Ask(_))
            );
            let has_new_map = matches!(before, RouteStep::PauseAndRefresh(_));
            if is_redirected && has_new_map && !left.is_zero() {
                let is_followed = matches!(step, RouteStep::Move(_) | RouteStep::Ask(_));
                prop_assert!(is_followed, "{failure:?}: {step:?}");
            }
        }
    }

    /// Each kind of pause doubles up to its longest one, and the other kind does not change it.
    #[test]
    fn pauses_grow_to_their_longest(limit in 0..LONGEST_LIMIT, failures in failures()) {
        let (mut moving, mut down) = (MOVING.0, DOWN.0);
        for (_, _, step) in steps_of(limit, &failures) {
            match step {
                RouteStep::Pause(pause) => prop_assert_eq!(pause, longer(&mut moving, MOVING.1)),
                RouteStep::PauseAndRefresh(pause) => {
                    prop_assert_eq!(pause, longer(&mut down, DOWN.1));
                }
                _ => {}
            }
        }
    }

    /// The command may have run, so no other node may get it.
    #[test]
    fn call_without_a_reply_ends_at_once(limit in 0..LONGEST_LIMIT, failures in failures()) {
        let mut call = RouteAttempt::new(Moment::from_millis(limit));
        let mut now = Moment::from_millis(0);
        for (failure, took) in failures {
            now = now.plus(Duration::from_millis(took));
            let _step = call.after(failure, now);
            let step = call.clone().after(RouteFailure::TimedOut, now);
            prop_assert_eq!(step, RouteStep::GiveUp(RouteEnd::NodeFailed));
        }
    }
}
