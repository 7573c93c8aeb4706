//! Experiments beside Redisson: the two sides lock one key, and an experiment measures handovers,
//! kills, stops and late commands. Prints a table in Markdown.

mod agent;
mod bench;
mod crashes;
mod handovers;
mod late;
mod leases;
mod loss;
mod names;
mod reply;
mod storm;
mod table;

use std::fmt::{self, Display, Formatter};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use crate::dialects::{REDISSON, REDISSON_FENCED};
use bench::Bench;
use storm::Storm;
use table::Table;

/// The clients of the experiments, with the version that the table shows.
pub const VERSIONS: [(&str, &str); 3] = [
    ("redisson-4.7", "4.7.0"),
    ("redisson-3.24", "3.24.3"),
    ("redisson-3.20", "3.20.0"),
];

/// The options of a run.
#[derive(Debug)]
pub struct Options {
    /// Runs longer storms, all experiments with fenced locks too, and watchdogs at the default ttl.
    pub full: bool,
    /// Only the experiments whose name contains one of these words; empty for all.
    pub only: Vec<String>,
    /// Only these clients; empty for all.
    pub clients: Vec<String>,
    /// The folder of the client programs, each under its name.
    pub programs: PathBuf,
    /// The folder of the lock-core programs.
    pub ours: PathBuf,
}

/// An experiment with one version of Redisson. It returns what it measured, or what is wrong.
type Experiment = fn(&Bench) -> Result<String, String>;

/// The experiments with their names in the table.
const EXPERIMENTS: &[(&str, Experiment)] = &[
    (handovers::MIXED, handovers::mixed),
    (handovers::REDISSON, handovers::among_redisson),
    (handovers::OURS, handovers::among_ours),
    ("names", names::are_the_same),
    ("holder killed", crashes::killed),
    ("SIGSTOP past the lease", crashes::stopped),
    ("lease ends", leases::ends),
    ("watchdogs, ttl of 3 s", leases::watchdogs),
    ("FLUSHALL", loss::flushed),
    ("forceUnlock", loss::forced),
    ("acquire later than its timeout", late::acquires),
];

/// The experiment that takes 12 s, and shows nothing new at another ttl.
const DEFAULT_TTL: (&str, Experiment) = ("watchdogs, default ttl", leases::default_watchdogs);

/// The results of a run.
#[derive(Debug, Default)]
pub struct Summary {
    table: Table,
    faults: Vec<String>,
    passed: usize,
    skipped: Vec<&'static str>,
}

impl Summary {
    /// Returns whether no experiment failed.
    pub fn is_good(&self) -> bool {
        self.faults.is_empty()
    }
}

impl Display for Summary {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.table)?;
        for fault in &self.faults {
            write!(f, "\nFAILED: {fault}")?;
        }
        for client in &self.skipped {
            write!(f, "\nskipped: {client} (needs Java)")?;
        }
        let (passed, failed, skipped) = (self.passed, self.faults.len(), self.skipped.len());
        write!(f, "\n{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// Runs all selected experiments, and prints each result as it comes.
pub fn run(options: &Options, print: &dyn Fn(&str)) -> Summary {
    let mut summary = Summary::default();
    let mut versions = Vec::new();
    for (client, version) in VERSIONS {
        let is_selected =
            options.clients.is_empty() || options.clients.iter().any(|it| it == client);
        if is_selected && options.programs.join(client).exists() {
            versions.push((client, version));
        } else if is_selected {
            summary.skipped.push(client);
        }
    }
    let schemes = if options.full {
        &[REDISSON, REDISSON_FENCED][..]
    } else {
        &[REDISSON][..]
    };
    let default_ttl = options.full.then_some(&DEFAULT_TTL);
    for &scheme in schemes {
        for &(name, experiment) in EXPERIMENTS.iter().chain(default_ttl) {
            for (number, &(client, version)) in versions.iter().enumerate() {
                // Its processes are those of lock-core alone.
                if !is_wanted(options, name) || (name == handovers::OURS && number > 0) {
                    continue;
                }
                let result = caught(|| experiment(&Bench::new(options, scheme, client)));
                summary.add(print, (scheme, name, version), result);
            }
        }
        let storms = Storm::all(scheme, options.full);
        for storm in storms.iter().filter(|storm| is_wanted(options, storm.name)) {
            let clients: Vec<_> = versions.iter().map(|&(client, _)| client).collect();
            if !clients.is_empty() {
                let result = caught(|| storm.run(options, &clients));
                summary.add(print, (scheme, storm.name, "all versions"), result);
            }
        }
    }
    summary
}

fn is_wanted(options: &Options, name: &str) -> bool {
    options.only.is_empty() || options.only.iter().any(|word| name.contains(word.as_str()))
}

/// The harness panics when its environment is not as required; the other experiments still run.
fn caught(experiment: impl FnOnce() -> Result<String, String>) -> Result<String, String> {
    let result = catch_unwind(AssertUnwindSafe(experiment));
    result.unwrap_or_else(|_| Err("see the panic above".to_owned()))
}

impl Summary {
    fn add(
        &mut self,
        print: &dyn Fn(&str),
        (scheme, name, version): (&'static str, &'static str, &'static str),
        result: Result<String, String>,
    ) {
        let title = format!("{scheme} {version}, {name}");
        match result {
            Ok(result) => {
                print(&format!("{title}: {result}"));
                self.table.add(scheme, name, version, result);
                self.passed += 1;
            }
            Err(fault) => {
                print(&format!("FAILED: {title}: {fault}"));
                self.faults.push(format!("{title}: {fault}"));
            }
        }
    }
}
