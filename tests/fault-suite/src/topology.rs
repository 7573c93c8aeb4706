//! Rounds on deployments of several servers: behind Sentinels, in a cluster, and at a quorum.
//!
//! The processes and the checks are those of a single server. The faults are those of the topology, one
//! after another, until the time is over. A failover is outside of what is promised about exclusion: such
//! overlaps are counted, and are no violations. Fenced resources must be safe in any case.

mod deployment;
mod faults;
mod samples;

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use lock_core::dialect::Dialect;
use lock_testing::Nanos;
use test_support::Random;

use self::deployment::Deployment;
use self::faults::FaultContext;
use crate::clock::now;
use crate::crew::Crew;
use crate::history::{Assumption, Fault, History, LONGEST_TTL, SLOTS};
use crate::leftovers::ROUNDING;
use crate::report::Report;
use crate::runner::{self, Options};
use crate::workload::Workload;

/// How the servers belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// A primary and two replicas, watched by three Sentinels.
    Sentinel,
    /// A Redis Cluster of three primaries with a replica each.
    Cluster,
    /// Five independent servers.
    Quorum,
}

/// For how long a restarted server of a quorum does not count. The tests use no longer ttl.
pub(crate) const QUARANTINE: Duration = Duration::from_secs(3);

/// The longest round. Its servers are new.
const ROUND: Duration = Duration::from_secs(40);

/// Between faults that disturb all processes, a waiter is not watched for long enough to be idle.
const QUIET: Duration = Duration::from_millis(2_500);

/// The length of a fault that lasts.
const ON: Duration = Duration::from_secs(2);

const WORKLOADS: [Workload; 4] = [
    Workload::Mixed,
    Workload::Storm,
    Workload::Mixed,
    Workload::Cancel,
];

impl Topology {
    /// All topologies.
    pub const ALL: [Self; 3] = [Self::Sentinel, Self::Cluster, Self::Quorum];

    /// Returns the name for the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
            Self::Quorum => "quorum",
        }
    }

    /// Returns whether clients of this dialect run here: native ones, and at a quorum all that it supports.
    pub fn runs(self, dialect: Dialect) -> bool {
        dialect == Dialect::Native
            || self == Self::Quorum && dialect.capabilities().works_at_quorum()
    }

    /// Returns the names of its faults.
    pub fn faults(self) -> Vec<&'static str> {
        faults::of(self).iter().map(|fault| fault.name).collect()
    }

    /// Returns the topology with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|topology| topology.name() == name)
    }
}

/// Runs all rounds. `print` receives a line about each.
///
/// # Panics
///
/// Panics if a server or a process does not start, or if a deployment does not recover from a fault.
pub fn run(topology: Topology, options: &Options, mut print: impl FnMut(&str)) -> Report {
    let mut random = Random::new(options.seed);
    let mut report = Report::new(options.seed, options.dialect);
    let total = Duration::from_secs(options.seconds.max(1));
    let rounds = u32::try_from(total.as_secs().div_ceil(ROUND.as_secs())).unwrap_or(1);
    for number in 0..rounds {
        let workload = options
            .workload
            .unwrap_or(WORKLOADS[number as usize % WORKLOADS.len()]);
        let history = play(topology, workload, total / rounds, options, &mut random);
        let faults: Vec<_> = history.faults.iter().map(|fault| &*fault.name).collect();
        let title = format!("{}: {}", workload.name(), faults.join(", "));
        let found = report.add(title.clone(), &history);
        print(&format!(
            "round {}  {title}  {} events, {} found",
            number + 1,
            history.events.len(),
            found.len()
        ));
        if let (false, Some(folder)) = (found.is_empty(), &options.keep) {
            runner::keep(folder, topology.name(), number as usize + 1, &history);
        }
    }
    report
}

fn play(
    topology: Topology,
    workload: Workload,
    span: Duration,
    options: &Options,
    random: &mut Random,
) -> History {
    let deployment = Arc::new(Deployment::start(topology));
    let crew = Crew::start(
        (deployment.urls(), Vec::new()),
        workload,
        options.dialect,
        &options.worker,
        random.fork(),
    );
    let sampler = samples::start(&deployment, options.dialect);
    let mut random = random.fork();
    let (started, began) = (Instant::now(), now());
    let mut faults = Vec::new();
    let mut deck = Vec::new();
    let mut quiet = (now(), deployment.owners());
    while started.elapsed() < span {
        if deck.is_empty() {
            deck = faults::of(topology);
            deck.retain(|it| {
                let is_wanted =
                    options.nemeses.is_empty() || options.nemeses.iter().any(|n| n == it.name);
                is_wanted && it.is_possible(&deployment)
            });
            assert!(!deck.is_empty(), "these servers cannot cause these faults");
            random.shuffle(&mut deck);
            // Long enough for a waiter to be idle for too long, after the processes have recovered.
            sleep(QUIET);
        }
        // Begin with a quiet period: a fault has no effect before the clients have begun.
        sleep(random.millis(700, 1_300));
        let Some(nemesis) = deck.pop() else { break };
        let (from, owners) = (now(), deployment.owners());
        faults.extend(unintended(&quiet, &owners));
        let mut context = FaultContext {
            deployment: &deployment,
            crew: &crew,
            random: &mut random,
            until: Instant::now() + ON,
            slots: Vec::new(),
        };
        (nemesis.act)(&mut context);
        let slots = context.slots;
        deployment.wait_ready();
        // A slow machine may have had a failover that the fault did not intend.
        let has_failed_over = nemesis.assumption == Assumption::Inside
            && !nemesis.moves_slots
            && owners != deployment.owners();
        faults.push(if has_failed_over {
            fault(nemesis.name, from, Assumption::Outside)
        } else {
            Fault {
                slots,
                ..fault(nemesis.name, from, nemesis.assumption)
            }
        });
        quiet = (now(), deployment.owners());
        // All leases that the fault may have lost have ended, and servers count again.
        sleep(deployment.pause_between_faults());
    }
    faults.extend(unintended(&quiet, &deployment.owners()));
    if deployment.clocks_differ() {
        // It disturbs no process.
        faults.push(Fault {
            is_load: true,
            slots: vec![SLOTS],
            ..fault("clocks-differ", began, Assumption::Inside)
        });
    }
    let mut history = History {
        hung: crew.end(),
        samples: sampler.end(),
        topology: Some(topology),
        ..History::default()
    };
    let ended = now();
    sleep(LONGEST_TTL + ROUNDING);
    history.survivors = deployment.survivors();
    crew.read_into(&mut history, ended);
    history.faults = faults;
    history
}

/// Returns the failover since a quiet moment that no fault caused: servers of a loaded machine call each
/// other down.
fn unintended(quiet: &(Nanos, Vec<u16>), owners: &[u16]) -> Option<Fault> {
    let is_unintended = quiet.1 != owners;
    is_unintended.then(|| fault("failover-unintended", quiet.0, Assumption::Outside))
}

/// Returns a fault that ends now, and may have disturbed all processes.
fn fault(name: &str, from: Nanos, assumption: Assumption) -> Fault {
    Fault {
        name: name.to_owned(),
        from,
        to: now(),
        assumption,
        is_load: false,
        slots: Vec::new(),
    }
}
