//! Runs many episodes on all cores, and describes what they found.

use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lock_testing::Call;
use test_support::Random;

use super::figures::Figures;
use super::nemesis;
use super::sabotage::Sabotage;
use super::story::Story;
use super::verdict::FoundViolation;
use super::{MS, Simulation};

/// The operations of an episode: enough for a hundred faults, and few enough that its history fits
/// into the caches.
const OPERATIONS_EACH: u64 = 8_000;

/// The lines of the story that are shown for a violation.
const LINES: usize = 80;
/// The violations of one episode that are shown.
const SHOWN: usize = 3;

/// The result of one episode.
pub(super) struct Episode {
    pub(super) seed: u64,
    pub(super) figures: Figures,
    /// The violations of a guarantee.
    pub(super) inside: Vec<FoundViolation>,
    pub(super) story: Option<Story>,
}

impl Episode {
    pub(super) fn run(seed: u64) -> Self {
        Self::of(Simulation::new(seed, None), seed, OPERATIONS_EACH)
    }

    /// Runs an episode with a fault of the library. It is shorter, because most faults show soon.
    pub(super) fn run_sabotaged(seed: u64, sabotage: Sabotage) -> Self {
        let simulation = Simulation::new(seed, Some(sabotage));
        Self::of(simulation, seed, OPERATIONS_EACH / 4)
    }

    /// Runs the same episode again, and tells its story.
    pub(super) fn replay(seed: u64) -> Self {
        let mut simulation = Simulation::new(seed, None);
        simulation.story = Some(Story::default());
        Self::of(simulation, seed, OPERATIONS_EACH)
    }

    fn of(mut simulation: Simulation, seed: u64, operations: u64) -> Self {
        let found = simulation.run(operations);
        let mut figures = simulation.figures;
        let (outside, inside) = found.into_iter().partition(|found| found.is_outside);
        let outside: Vec<FoundViolation> = outside;
        figures.outside = outside.len() as u64;
        Self {
            seed,
            figures,
            inside,
            story: simulation.story,
        }
    }

    /// Describes the first violations, with what happened before them.
    pub(super) fn describe(&self) -> String {
        let mut text = format!("episode {}:\n", self.seed);
        for found in self.inside.iter().take(SHOWN) {
            let (check, lock, from) = (found.check, found.key, found.from / MS);
            let _ = writeln!(
                text,
                "{check:?} of lock k{lock} since {from} ms: {}",
                found.text
            );
            if let Some(story) = &self.story {
                text += &story.excerpt(Some(found.key), found.to + 20 * MS, LINES);
            }
        }
        let left = self.inside.len().saturating_sub(SHOWN);
        if left > 0 {
            let _ = writeln!(text, "and {left} more violations");
        }
        let seed = self.seed;
        let _ = writeln!(text, "replay it: ./scripts/simulate --episode-seed {seed}");
        text
    }
}

/// Returns the seeds of the episodes of a run.
pub(super) fn episode_seed(seed: u64, number: u64) -> u64 {
    let mut random = Random::new(seed ^ number.wrapping_mul(0xd134_2543_de82_ef95));
    // Short enough to be typed.
    random.number() >> 24
}

/// Runs episodes until they have this many operations, or until one of them finds a violation.
pub(super) fn run_many(seed: u64, operations: u64) -> (Figures, Option<Episode>, Duration) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let all = Mutex::new((Figures::default(), None::<Episode>));
    let started = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let episode = Episode::run(episode_seed(seed, number));
                    let mut all = all.lock().expect("no thread panics");
                    all.0.add(&episode.figures);
                    let is_enough = all.0.operations >= operations;
                    if is_enough || !episode.inside.is_empty() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    if !episode.inside.is_empty() {
                        all.1.get_or_insert(episode);
                    }
                }
            });
        }
    });
    let (figures, failed) = all.into_inner().expect("no thread panics");
    (figures, failed, started.elapsed())
}

/// Describes the figures for people.
pub(super) fn describe(figures: &Figures, seed: u64, took: Duration) -> String {
    let mut text = String::new();
    let virtual_ns = u64::try_from(figures.virtual_ns).unwrap_or(u64::MAX);
    let virtual_seconds = Duration::from_nanos(virtual_ns).as_secs_f64();
    let seconds = took.as_secs_f64();
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<34}{value}");
    };
    line("seed", seed.to_string());
    line("operations", figures.operations.to_string());
    line("episodes", figures.episodes.to_string());
    line("events", figures.events.to_string());
    line("virtual hours", format!("{:.1}", virtual_seconds / 3_600.0));
    line("real seconds", format!("{seconds:.1}"));
    line(
        "virtual hours per real minute",
        format!("{:.1}", virtual_seconds / 3_600.0 / (seconds / 60.0)),
    );
    line(
        "virtual seconds per real second",
        format!("{:.0}", virtual_seconds / seconds),
    );
    for call in Call::ALL {
        let of = figures.calls[*call as usize];
        let value = format!(
            "{} begun, {} ok, {} fail, {} info",
            of.invoked, of.ok, of.failed, of.unknown
        );
        line(call.as_str(), value);
    }
    for (name, value) in [
        ("cancels of dropped futures", figures.cancels),
        ("cancels that were repeated", figures.repeated_cancels),
        ("handovers", figures.handovers),
        ("grants by notification", figures.grants_by_notification),
        ("head-of-queue notifications", figures.heads),
        ("grants that needed a renewal", figures.confirmations),
        ("late grants given up", figures.late_grants),
        ("commands without a reply", figures.timeouts),
        ("refused by a full queue", figures.refused),
        ("waits timed out", figures.timed_out),
        ("losses", figures.losses),
        ("processes killed", figures.deaths),
        ("accepted writes", figures.accepted_writes),
        ("stale writes rejected", figures.stale_writes),
        ("stale reads rejected", figures.stale_reads),
        ("longest wait in ms", figures.longest_wait / MS),
        ("violations outside assumptions", figures.outside),
    ] {
        line(name, value.to_string());
    }
    for (name, uses) in nemesis::names().zip(figures.nemeses) {
        let value = format!("{} times, {} operations", uses.times, uses.operations);
        line(name, value);
    }
    text
}
