//! The suite itself, with real processes.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use fault_suite::checks::check;
use fault_suite::clock::now;
use fault_suite::environment::{Environment, ServerSetup};
use fault_suite::history::SLOTS;
use fault_suite::runner::{self, Options};
use fault_suite::sampler::Sampler;
use fault_suite::topology::Topology;
use fault_suite::workload::Workload;
use fault_suite::{dialects, nemesis};
use lock_core::dialect::Dialect;
use lock_testing::{Access, AccessKind, lost_updates};
use test_support::Random;

/// The longest pause of a holder.
const PAUSE: Duration = Duration::from_secs(10);

const WORKER: &str = env!("CARGO_BIN_EXE_fault-worker");

fn is_read(access: &Access) -> bool {
    access.kind == AccessKind::Read
}

/// A violation that no lock can prevent and only a fenced resource can. A process is paused, loses
/// its lock, and writes after it continues. If the suite misses this, it would miss everything.
#[test]
fn paused_holder_overwrites_an_unfenced_resource() {
    let worker = Path::new(WORKER);
    let environment = Environment::start(
        ServerSetup::Durable,
        Workload::Late,
        Dialect::Native,
        worker,
        Random::new(1),
    );
    let sampler = Sampler::start(&environment);
    let started = Instant::now();
    let others_write = |process, since: usize| {
        let accesses = environment.crew.unfenced_accesses();
        let mut later = accesses[since..].iter();
        later.any(|access| access.process != process && !is_read(access))
    };
    while lost_updates(&environment.crew.unfenced_accesses()).is_empty() {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "no update was lost although holders were paused beyond their leases"
        );
        let accesses = environment.crew.unfenced_accesses();
        // After a read, its process thinks for 200 ms at least.
        let Some(reader) = accesses.last().filter(|access| is_read(access)) else {
            sleep(Duration::from_millis(5));
            continue;
        };
        let slot = (reader.process % SLOTS) as usize;
        environment.crew.stop(slot);
        let paused = Instant::now();
        while !others_write(reader.process, accesses.len()) && paused.elapsed() < PAUSE {
            sleep(Duration::from_millis(5));
        }
        environment.crew.cont(slot);
        sleep(Duration::from_millis(100));
    }
    let history = environment.finish(sampler, now());
    let refused = history.accesses.iter();
    let refused = refused.filter(|access| access.kind == AccessKind::RefusedWrite);
    assert!(refused.count() > 0, "no write was refused");
    // The lock itself kept its guarantees.
    assert_eq!(check(&history), []);
}

#[test]
fn every_nemesis_has_a_unique_name() {
    let mut names: Vec<&str> = nemesis::ALL.iter().map(|nemesis| nemesis.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), nemesis::ALL.len());
    for topology in Topology::ALL {
        let mut names = topology.faults();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), topology.faults().len(), "{}", topology.name());
    }
}

#[test]
fn every_dialect_has_a_name_and_a_ttl_and_nemeses() {
    for &dialect in Dialect::all() {
        assert_eq!(dialects::named(dialects::name(dialect)), Some(dialect));
        let step = dialect.capabilities().ttl_step().as_nanos();
        assert!(
            dialects::longest_ttl(dialect)
                .as_nanos()
                .is_multiple_of(step)
        );
        assert!(dialects::longest_ttl(dialect) > Duration::from_secs(1));
        for nemesis in nemesis::ALL {
            let promises = nemesis.setup == ServerSetup::Durable;
            assert!(dialect == Dialect::Native || promises || !nemesis.fits(dialect));
        }
    }
    // Without the native dialect, and without the one that not all servers support.
    assert_eq!(dialects::foreign().len(), Dialect::all().len() - 2);
    assert_eq!(dialects::names().len(), Dialect::all().len());
}

/// Fifteen seconds of the suite, with faults of each kind that the guarantees cover.
#[test]
fn short_run_passes_all_checks() {
    let nemeses = ["client-pause-long", "net-lost-reply", "connections-killed"];
    let report = runner::run(
        &Options {
            seconds: 15,
            seed: 1,
            nemeses: nemeses.map(ToOwned::to_owned).to_vec(),
            dialect: Dialect::Native,
            workload: None,
            worker: WORKER.into(),
            keep: None,
        },
        |_| {},
    );
    println!("{report}");
    assert!(report.is_good(), "\n{report}");
    for name in nemeses {
        assert!(
            report.overlapped(name) > 0,
            "no operation overlapped {name}"
        );
    }
}
