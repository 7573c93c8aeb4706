use super::*;
use crate::protocol::route::HashSlot;
use proptest::prelude::*;

fn at(ms: u64) -> Moment {
    Moment::from_millis(ms)
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn attempt() -> RouteAttempt {
    RouteAttempt::new(at(1000), at(3000))
}

fn node(port: u16) -> Redirect {
    Redirect {
        slot: HashSlot::new(7).unwrap(),
        host: None,
        port,
    }
}

fn pause_of(step: &RouteStep) -> Option<Duration> {
    match step {
        RouteStep::Moved { pause, .. }
        | RouteStep::Ask { pause, .. }
        | RouteStep::Pause(pause)
        | RouteStep::PauseAndRefresh(pause) => Some(*pause),
        RouteStep::GiveUp(_) => None,
    }
}

/// At most the given number of milliseconds, and at least three quarters of it.
fn assert_pauses(failure: &RouteFailure, expected: &[u64]) {
    let mut attempt = attempt();
    for longest in expected {
        let pause = pause_of(&attempt.after(failure.clone(), at(1000))).unwrap();
        assert!(pause <= ms(*longest) && pause >= ms(*longest) * 3 / 4);
    }
}

#[test]
fn first_five_redirects_are_followed_at_once() {
    let mut attempt = attempt();
    for port in 1..=4 {
        let (to, pause) = (node(port), Duration::ZERO);
        let step = attempt.after(RouteFailure::Moved(to.clone()), at(1000));
        assert_eq!(step, RouteStep::Moved { to, pause });
    }
    let (to, pause) = (node(5), Duration::ZERO);
    let step = attempt.after(RouteFailure::Ask(to.clone()), at(1000));
    assert_eq!(step, RouteStep::Ask { to, pause });
    assert!(matches!(
        attempt.after(RouteFailure::Ask(node(6)), at(1000)),
        RouteStep::Ask { to, pause } if to == node(6) && pause >= ms(7) && pause <= ms(10)
    ));
    assert!(matches!(
        attempt.after(RouteFailure::Moved(node(7)), at(1000)),
        RouteStep::Moved { to, pause } if to == node(7) && pause >= ms(15) && pause <= ms(20)
    ));
}

#[test]
fn pauses_of_each_failure_grow_to_fifty_milliseconds() {
    let moved = RouteFailure::Moved(node(1));
    assert_pauses(&moved, &[0, 0, 0, 0, 0, 10, 20, 40, 50, 50]);
    assert_pauses(&RouteFailure::TryAgain, &[2, 4, 8, 16, 32, 50, 50]);
    assert_pauses(&RouteFailure::ClusterDown, &[10, 20, 40, 50, 50]);
    assert_pauses(&RouteFailure::Unreachable, &[2, 4, 8, 16, 32, 50]);
    assert_pauses(&RouteFailure::TimedOut, &[2, 4, 8, 16, 32, 50]);
}

#[test]
fn failures_of_the_cluster_refresh_the_map_and_an_open_slot_does_not() {
    let mut attempt = attempt();
    for failure in [
        RouteFailure::ClusterDown,
        RouteFailure::Unreachable,
        RouteFailure::TimedOut,
    ] {
        let step = attempt.after(failure, at(1000));
        assert!(matches!(step, RouteStep::PauseAndRefresh(_)));
    }
    assert_eq!(attempt.try_agains(), 0);
    let step = attempt.after(RouteFailure::TryAgain, at(1000));
    assert!(matches!(step, RouteStep::Pause(_)));
    assert_eq!(attempt.try_agains(), 1);
}

#[test]
fn failure_at_the_deadline_gives_up_with_its_own_reason() {
    for (failure, reason) in [
        (RouteFailure::Moved(node(1)), RouteGiveUpReason::Redirected),
        (RouteFailure::Ask(node(1)), RouteGiveUpReason::Redirected),
        (RouteFailure::TryAgain, RouteGiveUpReason::SlotMoving),
        (RouteFailure::ClusterDown, RouteGiveUpReason::ClusterDown),
        (RouteFailure::Unreachable, RouteGiveUpReason::Unreachable),
        (RouteFailure::TimedOut, RouteGiveUpReason::TimedOut),
    ] {
        let mut attempt = attempt();
        // An earlier failure of another kind does not change the reason.
        let _ = attempt.after(RouteFailure::ClusterDown, at(1000));
        let _ = attempt.after(RouteFailure::TryAgain, at(1000));
        assert_eq!(attempt.after(failure, at(3000)), RouteStep::GiveUp(reason));
    }
}

#[test]
fn pause_that_does_not_fit_before_the_deadline_gives_up() {
    let step = attempt().after(RouteFailure::ClusterDown, at(2993));
    assert_eq!(step, RouteStep::GiveUp(RouteGiveUpReason::ClusterDown));
    let step = attempt().after(RouteFailure::TryAgain, at(2993));
    assert!(matches!(step, RouteStep::Pause(_)));
}

fn any_failure() -> impl Strategy<Value = RouteFailure> {
    prop_oneof![
        any::<u16>().prop_map(|port| RouteFailure::Moved(node(port))),
        any::<u16>().prop_map(|port| RouteFailure::Ask(node(port))),
        Just(RouteFailure::TryAgain),
        Just(RouteFailure::ClusterDown),
        Just(RouteFailure::Unreachable),
        Just(RouteFailure::TimedOut),
    ]
}

proptest! {
    #[test]
    fn steps_of_any_call_end_before_its_deadline(
        failures in prop::collection::vec((any_failure(), 0..30_u64), 1..80),
        limit in 0..2000_u64,
    ) {
        let deadline = at(limit);
        let mut now = at(0);
        let mut attempt = RouteAttempt::new(now, deadline);
        let mut at_once = 0;
        for (failure, took) in failures {
            now = now.plus(ms(took));
            let step = attempt.after(failure, now);
            match pause_of(&step) {
                Some(pause) => {
                    prop_assert!(pause <= LONGEST_PAUSE);
                    at_once += u32::from(pause.is_zero());
                    now = now.plus(pause);
                    prop_assert!(now < deadline);
                }
                None => prop_assert!(now.plus(LONGEST_PAUSE) >= deadline),
            }
        }
        prop_assert!(at_once <= REDIRECTS_AT_ONCE);
    }
}
