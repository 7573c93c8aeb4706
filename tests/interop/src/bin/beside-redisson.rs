//! Runs the experiments beside Redisson, and prints their table. See `--help`; ./scripts/interop
//! builds the required programs.

use std::process::ExitCode;

use interop::beside::{self, Options, VERSIONS};

const HELP: &str = "\
Locks one key with Redisson and with this library, and measures handovers, kills, stops and late
commands. Checks what the two sides promise each other. Prints a table in Markdown.

  --full            runs fenced locks too, longer storms, and watchdogs at the default ttl
  --only WORD       runs only experiments whose name contains this; repeat the option for more
  --client CLIENT   runs only this version of Redisson; repeat the option for more
  --clients FOLDER  sets the folder of the clients' programs [../interop/bin beside this program]

Exits with 0 when all experiments passed, and with 1 when one failed. Skips a client if its program
is missing.";

fn main() -> ExitCode {
    let this = std::env::current_exe().expect("this program has a path");
    let mut options = Options {
        full: false,
        only: Vec::new(),
        clients: Vec::new(),
        programs: this.with_file_name("../interop/bin"),
        ours: this.with_file_name(""),
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || {
            let value = arguments.next();
            value.unwrap_or_else(|| exit_with(&format!("{argument} needs a value")))
        };
        match argument.as_str() {
            "--full" => options.full = true,
            "--only" => options.only.push(value()),
            "--client" => options.clients.push(value()),
            "--clients" => options.programs = value().into(),
            "--help" | "-h" => {
                println!("{HELP}");
                return ExitCode::SUCCESS;
            }
            other => exit_with(&format!("unknown argument `{other}`; see --help")),
        }
    }
    let known = |name: &&String| !VERSIONS.iter().any(|(client, _)| client == *name);
    if let Some(name) = options.clients.iter().find(known) {
        exit_with(&format!("no client `{name}`"));
    }
    let summary = beside::run(&options, &|line| println!("{line}"));
    println!("\n{summary}");
    if summary.is_good() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn exit_with(message: &str) -> ! {
    eprintln!("beside-redisson: {message}");
    std::process::exit(2);
}
