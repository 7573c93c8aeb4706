//! Rounds, one after another: each with its own server, processes, workload and nemeses.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use lock_core::dialect::Dialect;
use lock_testing::Line;

use crate::dialects;
use crate::environment::Environment;
use crate::environment::ServerSetup;
use crate::sampler::Sampler;

use crate::clock::now;
use crate::history::{Fault, History};
use crate::nemesis::{self, Nemesis};
use crate::report::Report;
use crate::workload::Workload;
use test_support::Random;

/// The approximate length of a round: long enough for three faults, short enough for a small
/// record.
const ROUND: Duration = Duration::from_secs(15);

/// The length of a fault, and the quiet time before the next one.
const ON: Duration = Duration::from_secs(2);
const OFF: Duration = Duration::from_secs(3);

/// The workloads of the rounds, in turn. The mixed one resembles most services. The one with only
/// long holds has the fewest operations for a fault to hit.
const WORKLOADS: [Workload; 9] = [
    Workload::Mixed,
    Workload::Mixed,
    Workload::Storm,
    Workload::Cancel,
    Workload::Mixed,
    Workload::Modify,
    Workload::Mixed,
    Workload::Try,
    Workload::Outage,
];

/// The options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long clients work, in all rounds together.
    pub seconds: u64,
    /// The seed of all random choices except those of the operating system.
    pub seed: u64,
    /// The names of the nemeses; empty for all.
    pub nemeses: Vec<String>,
    /// The dialect of the clients.
    pub dialect: Dialect,
    /// The only workload; `None` for all in turn.
    pub workload: Option<Workload>,
    /// The program of the client processes.
    pub worker: PathBuf,
    /// The folder for records of rounds with violations.
    pub keep: Option<PathBuf>,
}

struct Round {
    setup: ServerSetup,
    workload: Workload,
    nemeses: Vec<&'static Nemesis>,
    span: Duration,
}

impl Round {
    fn title(&self) -> String {
        let nemeses: Vec<&str> = self.nemeses.iter().map(|nemesis| nemesis.name).collect();
        format!("{}: {}", self.workload.name(), nemeses.join(", "))
    }
}

/// Runs all rounds. `print` receives a line about each.
///
/// # Panics
///
/// Panics if a nemesis is unknown or does not fit the dialect, or if a server or process does not
/// start.
pub fn run(options: &Options, mut print: impl FnMut(&str)) -> Report {
    let mut random = Random::new(options.seed);
    let mut report = Report::new(options.seed, options.dialect);
    for (number, round) in plan(options, &mut random).into_iter().enumerate() {
        let title = round.title();
        let history = play(&round, options, &mut random);
        let found = report.add(title.clone(), &history);
        print(&format!(
            "round {}  {title}  {} events, {} found",
            number + 1,
            history.events.len(),
            found.len()
        ));
        if let (false, Some(folder)) = (found.is_empty(), &options.keep) {
            keep(folder, "one", number + 1, &history);
        }
    }
    report
}

fn plan(options: &Options, random: &mut Random) -> Vec<Round> {
    assert!(
        options.dialect == Dialect::Native || !options.workload.is_some_and(Workload::is_native),
        "the workload needs the native dialect"
    );
    let fits = |nemesis: &&Nemesis| nemesis.fits(options.dialect);
    for name in &options.nemeses {
        assert!(
            nemesis::ALL
                .iter()
                .filter(fits)
                .any(|nemesis| nemesis.name == name),
            "no nemesis `{name}` for this dialect; see --list"
        );
    }
    let is_wanted = |nemesis: &&Nemesis| {
        fits(nemesis)
            && (options.nemeses.is_empty()
                || options.nemeses.iter().any(|name| name == nemesis.name))
    };
    let mut groups: BTreeMap<ServerSetup, (Vec<&'static Nemesis>, usize)> = BTreeMap::new();
    for nemesis in nemesis::ALL.iter().filter(is_wanted) {
        let group = groups.entry(nemesis.setup).or_default();
        group.0.push(nemesis);
    }
    let total = Duration::from_secs(options.seconds.max(1));
    let rounds = (total.as_secs() / ROUND.as_secs()).max(1);
    let span = total / u32::try_from(rounds).expect("the number of rounds fits in 32 bits");
    let faults = (span.as_secs() / (ON + OFF).as_secs()).max(1);
    let mut decks: BTreeMap<ServerSetup, Vec<&'static Nemesis>> = BTreeMap::new();
    let mut plan = Vec::new();
    for number in 0..usize::try_from(rounds).expect("the number of rounds fits") {
        // Prefer the kind of server that is furthest behind, relative to its number of nemeses.
        let (setup, (all, dealt)) = groups
            .iter_mut()
            .min_by_key(|(_, (all, dealt))| *dealt * 1000 / all.len())
            .expect("at least one nemesis is selected");
        let deck = decks.entry(*setup).or_default();
        let mut nemeses = Vec::new();
        for _ in 0..faults {
            if deck.is_empty() {
                deck.clone_from(all);
                random.shuffle(deck);
            }
            nemeses.extend(deck.pop());
            *dealt += 1;
        }
        plan.push(Round {
            setup: *setup,
            workload: options
                .workload
                .unwrap_or(WORKLOADS[number % WORKLOADS.len()]),
            nemeses,
            span,
        });
    }
    plan
}

fn play(round: &Round, options: &Options, random: &mut Random) -> History {
    let environment = Environment::start(
        round.setup,
        round.workload,
        options.dialect,
        &options.worker,
        random.fork(),
    );
    let sampler = Sampler::start(&environment);
    let mut random = random.fork();
    let started = Instant::now();
    let mut faults = Vec::new();
    for nemesis in &round.nemeses {
        // Begin with a quiet period: a fault has no effect before the clients have begun.
        sleep(random.millis(700, 1_300));
        let from = now();
        let slots = nemesis.act(&environment, &mut random, ON);
        faults.push(Fault {
            name: nemesis.name.to_owned(),
            from,
            to: now(),
            assumption: nemesis.assumption,
            is_load: nemesis.is_load,
            slots,
        });
        sleep(OFF.saturating_sub(Duration::from_secs(1)));
    }
    sleep(round.span.saturating_sub(started.elapsed()));
    let mut history = environment.finish(sampler, now());
    history.faults = faults;
    history
}

/// Writes the record to a file for later analysis.
pub(crate) fn keep(folder: &Path, servers: &str, number: usize, history: &History) {
    let mut text = String::new();
    for fault in &history.faults {
        let _ = writeln!(text, "# {fault:?}");
    }
    let stalls = history.stalls.iter().copied().map(Line::Stall);
    let events = history.events.iter().cloned().map(Line::Event);
    let accesses = history.accesses.iter().cloned().map(Line::Access);
    for line in stalls.chain(events).chain(accesses) {
        text += &line.to_text();
    }
    for sample in &history.samples {
        let _ = writeln!(text, "# {sample:?}");
    }
    let dialect = dialects::name(history.dialect);
    let file = folder.join(format!("{servers}-{dialect}-round-{number}.jsonl"));
    let kept = fs::create_dir_all(folder).and_then(|()| fs::write(&file, text));
    kept.unwrap_or_else(|e| panic!("{}: {e}", file.display()));
}
