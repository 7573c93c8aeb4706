//! Runs the fault suite, and prints its report. See `--help`.

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use fault_suite::dialects;
use fault_suite::nemesis;
use fault_suite::runner::{self, Options};
use fault_suite::topology::{self, Topology};
use fault_suite::workload::Workload;
use lock_core::dialect::Dialect;

const ALL_DIALECTS: &str = "all-dialects";

const HELP: &str = "\
Breaks a lock server, its clients and the network, and checks the guarantees of the library.

  --seconds N       runs the clients for N seconds, in rounds of 15 s [90]
  --seed N          sets the seed of all random choices; the report shows it [the current time]
  --nemesis A,B     uses only these nemeses, or faults of the topology
  --workload NAME   uses only this workload; rw, permits, sets and tickets run in the native dialect only; they
                    and elections run only when they are named [all others in turn]
  --dialect NAME    sets the dialect of the clients; all-dialects runs every dialect except native,
                    each for N seconds and with the next seed [native]
  --topology NAME   runs on several servers with faults of their own: sentinel, cluster or quorum;
                    a quorum also in the dialects that it supports
  --keep FOLDER     writes the records of rounds with violations to this folder
  --list            lists the names of all nemeses, workloads and dialects

Exits with 0 when all checks passed, and with 1 when a guarantee was broken.";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut options = Options {
        seconds: 90,
        seed: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(1, |now| now.as_secs()),
        nemeses: Vec::new(),
        dialect: Dialect::Native,
        workload: None,
        worker: std::env::current_exe()
            .expect("this program has a path")
            .with_file_name("fault-worker"),
        keep: None,
    };
    let mut dialects = vec![Dialect::Native];
    let mut topology = None;
    while let Some(argument) = arguments.next() {
        let mut value = || {
            let value = arguments.next();
            value.unwrap_or_else(|| exit_with(&format!("{argument} needs a value")))
        };
        match argument.as_str() {
            "--seconds" => options.seconds = number(&value()),
            "--seed" => options.seed = number(&value()),
            "--nemesis" => {
                let names = value();
                options.nemeses = names.split(',').map(ToOwned::to_owned).collect();
            }
            "--workload" => {
                let name = value();
                let workload = Workload::named(&name);
                options.workload =
                    Some(workload.unwrap_or_else(|| exit_with(&format!("no workload `{name}`"))));
            }
            "--dialect" => {
                let name = value();
                dialects = dialects_named(&name);
            }
            "--topology" => {
                let name = value();
                let known = Topology::named(&name);
                topology =
                    Some(known.unwrap_or_else(|| exit_with(&format!("no topology `{name}`"))));
            }
            "--keep" => options.keep = Some(value().into()),
            "--list" => {
                list();
                return ExitCode::SUCCESS;
            }
            "--help" | "-h" => {
                println!("{HELP}");
                return ExitCode::SUCCESS;
            }
            other => exit_with(&format!("unknown argument `{other}`; see --help")),
        }
    }
    if let Some(workload) = options.workload {
        check_workload(workload, &dialects, topology);
    }
    if let Some(topology) = topology {
        let known = topology.faults();
        if let Some(name) = options
            .nemeses
            .iter()
            .find(|it| !known.contains(&it.as_str()))
        {
            let topology = topology.name();
            exit_with(&format!(
                "no fault `{name}` in the topology {topology}; see --list"
            ));
        }
        if let Some(dialect) = dialects.iter().find(|it| !topology.runs(**it)) {
            exit_with(&format!(
                "the topology {} does not run the dialect {}",
                topology.name(),
                dialects::name(*dialect)
            ));
        }
        return run_topology(topology, &dialects, &mut options);
    }
    check_nemeses(&options.nemeses, &dialects);
    let mut is_good = true;
    for dialect in dialects {
        options.dialect = dialect;
        if dialect != Dialect::Native {
            println!("dialect {}", dialects::name(dialect));
        }
        let report = runner::run(&options, |line| println!("{line}"));
        println!("\n{report}\n");
        is_good &= report.is_good();
        options.seed = options.seed.wrapping_add(1);
    }
    if is_good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Exits if the dialect or the topology has no such locks.
fn check_workload(workload: Workload, dialects: &[Dialect], topology: Option<Topology>) {
    let name = workload.name();
    if workload.is_native() && dialects != [Dialect::Native] {
        exit_with(&format!("the workload {name} needs the dialect native"));
    }
    let is_shared = matches!(
        workload,
        Workload::ReadWrite | Workload::Permits | Workload::Tickets | Workload::Once
    );
    if is_shared && topology == Some(Topology::Quorum) {
        exit_with(&format!("a quorum does not run the workload {name}"));
    }
}

/// Exits if there is no nemesis of a name, or if a dialect promises nothing under it.
fn check_nemeses(names: &[String], dialects: &[Dialect]) {
    for name in names {
        let known = nemesis::ALL.iter().find(|nemesis| nemesis.name == *name);
        let Some(known) = known else {
            exit_with(&format!("no nemesis `{name}`; see --list"));
        };
        if let Some(dialect) = dialects.iter().find(|dialect| !known.fits(**dialect)) {
            exit_with(&format!(
                "the dialect {} promises nothing under the nemesis `{name}`",
                dialects::name(*dialect)
            ));
        }
    }
}

fn run_topology(topology: Topology, dialects: &[Dialect], options: &mut Options) -> ExitCode {
    let mut is_good = true;
    for dialect in dialects {
        options.dialect = *dialect;
        println!(
            "topology {}, dialect {}",
            topology.name(),
            dialects::name(*dialect)
        );
        let report = topology::run(topology, options, |line| println!("{line}"));
        println!("\n{report}\n");
        is_good &= report.is_good();
        options.seed = options.seed.wrapping_add(1);
    }
    if is_good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn list() {
    let names: Vec<&str> = nemesis::ALL.iter().map(|nemesis| nemesis.name).collect();
    println!("nemeses: {}", names.join(" "));
    println!("workloads: {}", Workload::names().join(" "));
    let topologies = Topology::ALL.map(Topology::name);
    println!("topologies: {}", topologies.join(" "));
    for topology in Topology::ALL {
        println!(
            "faults of {}: {}",
            topology.name(),
            topology.faults().join(" ")
        );
    }
    println!("dialects: {} {ALL_DIALECTS}", dialects::names().join(" "));
}

fn dialects_named(name: &str) -> Vec<Dialect> {
    if name == ALL_DIALECTS {
        return dialects::foreign();
    }
    let dialect = dialects::named(name);
    vec![dialect.unwrap_or_else(|| exit_with(&format!("no dialect `{name}`; see --list")))]
}

fn number(text: &str) -> u64 {
    text.parse()
        .unwrap_or_else(|_| exit_with(&format!("`{text}` is not a number")))
}

fn exit_with(message: &str) -> ! {
    eprintln!("fault-suite: {message}");
    std::process::exit(2);
}
