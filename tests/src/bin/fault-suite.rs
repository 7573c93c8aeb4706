//! Runs the fault suite, and prints its report. See `--help`.

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use tests::faults::nemesis;
use tests::faults::runner::{self, Options};
use tests::faults::worker::Workload;

const HELP: &str = "\
Breaks a lock server, its clients and the network between them, and checks what was promised.

  --seconds N       how long clients work, in rounds of 15 s [90]
  --seed N          of all choices; printed in the report [the time]
  --nemesis A,B     only these
  --workload NAME   only this one
  --keep FOLDER     where to keep records of rounds with violations
  --list            the names of all nemeses and workloads

Ends with 0 when all checks passed, 1 when a promise was broken.";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let mut options = Options {
        seconds: 90,
        seed: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(1, |now| now.as_secs()),
        nemeses: Vec::new(),
        workload: None,
        worker: std::env::current_exe()
            .expect("this program has a path")
            .with_file_name("fault-worker"),
        keep: None,
    };
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
            "--keep" => options.keep = Some(value().into()),
            "--list" => {
                let names: Vec<&str> = nemesis::ALL.iter().map(|nemesis| nemesis.name).collect();
                println!("nemeses: {}", names.join(" "));
                println!("workloads: {}", Workload::names().join(" "));
                return ExitCode::SUCCESS;
            }
            "--help" | "-h" => {
                println!("{HELP}");
                return ExitCode::SUCCESS;
            }
            other => exit_with(&format!("`{other}` is not known; see --help")),
        }
    }
    let known = |name: &&String| !nemesis::ALL.iter().any(|nemesis| nemesis.name == **name);
    if let Some(name) = options.nemeses.iter().find(known) {
        exit_with(&format!("no nemesis `{name}`; see --list"));
    }
    let report = runner::run(&options, |line| println!("{line}"));
    println!("\n{report}");
    if report.is_good() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn number(text: &str) -> u64 {
    text.parse()
        .unwrap_or_else(|_| exit_with(&format!("`{text}` is not a number")))
}

fn exit_with(message: &str) -> ! {
    eprintln!("fault-suite: {message}");
    std::process::exit(2);
}
