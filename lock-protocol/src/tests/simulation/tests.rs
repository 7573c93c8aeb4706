//! The runs: a short one with each build, a long one with `./scripts/simulate`, and the faults that a
//! run must find.

use super::run::{Episode, describe, episode_seed, run_many};
use super::sabotage::Sabotage;
use super::verdict::SimulatedCheck;

/// The seeds of the short run.
const SEED: u64 = 20;
const SHORT: u64 = 60_000;

fn environment(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().expect("the number is valid"))
}

fn fail(episode: &Episode) -> ! {
    let again = Episode::replay(episode.seed);
    panic!("{}", again.describe());
}

#[test]
fn guarantees_hold_in_a_simulation_with_faults() {
    let (figures, failed, took) = run_many(SEED, SHORT);
    println!("{}", describe(&figures, SEED, took));
    if let Some(episode) = failed {
        fail(&episode);
    }
    for (name, uses) in super::nemesis::names().zip(figures.nemeses) {
        assert!(uses.times > 0 && uses.operations > 0, "{name}: {uses:?}");
    }
    for (event, times) in [
        ("cancel", figures.cancels),
        ("repeated cancel", figures.repeated_cancels),
        ("handover", figures.handovers),
        ("grant by notification", figures.grants_by_notification),
        ("head-of-queue notification", figures.heads),
        ("confirmation", figures.confirmations),
        ("late grant", figures.late_grants),
        ("command without a reply", figures.timeouts),
        ("refused by a full queue", figures.refused),
        ("timed out", figures.timed_out),
        ("loss", figures.losses),
        ("death", figures.deaths),
        ("accepted write", figures.accepted_writes),
        ("stale write", figures.stale_writes),
    ] {
        assert!(times > 0, "no {event} happened");
    }
}

#[test]
fn seed_repeats_an_episode_exactly() {
    let seed = episode_seed(SEED, 0);
    let first = Episode::run(seed);
    let second = Episode::replay(seed);
    assert_eq!(first.figures, second.figures);
    assert_eq!(first.inside, second.inside);
    assert_ne!(first.figures.digest, Episode::run(seed + 1).figures.digest);
}

/// The seed of the episodes with a fault of the library. All faults show soon; other seeds need up to
/// eight times as many operations.
const SABOTAGE_SEED: u64 = 9;

/// No sabotage may hide for more than this many operations.
const OPERATIONS_UNTIL_FOUND: u64 = 400_000;

/// Returns the first violation that shows the sabotage, and the operations until then.
fn find(sabotage: Sabotage, expected: &[SimulatedCheck]) -> (u64, Option<String>) {
    let mut operations = 0;
    let mut number = 0;
    while operations < OPERATIONS_UNTIL_FOUND {
        let episode = Episode::run_sabotaged(episode_seed(SABOTAGE_SEED, number), sabotage);
        operations += episode.figures.operations;
        number += 1;
        let mut found = episode.inside.into_iter();
        if let Some(found) = found.find(|found| expected.contains(&found.check)) {
            return (
                operations,
                Some(format!("{:?}: {}", found.check, found.text)),
            );
        }
    }
    (operations, None)
}

#[test]
fn each_sabotage_is_found() {
    std::thread::scope(|scope| {
        for (sabotage, expected) in Sabotage::ALL {
            scope.spawn(move || {
                let (operations, found) = find(*sabotage, expected);
                println!("{sabotage:?} after {operations} operations: {found:?}");
                assert!(found.is_some(), "{sabotage:?} was not found");
            });
        }
    });
}

/// The run of `./scripts/simulate`.
#[test]
#[ignore = "takes minutes; ./scripts/simulate runs it with optimizations"]
fn long_run() {
    if let Some(seed) = environment("SIMULATE_EPISODE_SEED") {
        let episode = Episode::replay(seed);
        let story = episode
            .story
            .as_ref()
            .map(|story| story.excerpt(None, u64::MAX, usize::MAX));
        println!("{}", story.unwrap_or_default());
        assert!(episode.inside.is_empty(), "{}", episode.describe());
        return;
    }
    let seed = environment("SIMULATE_SEED").unwrap_or(1);
    let operations = environment("SIMULATE_OPERATIONS").unwrap_or(10_000_000);
    let (figures, failed, took) = run_many(seed, operations);
    println!("{}", describe(&figures, seed, took));
    if let Some(episode) = failed {
        fail(&episode);
    }
}
