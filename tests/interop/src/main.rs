//! Races clients of other languages against lock-core, and prints the results. See `--help`;
//! ./scripts/interop builds the required programs.

use std::process::ExitCode;

use interop::{CLIENTS, Options};

const HELP: &str = "\
Races lock clients in other languages against this library on one key. Two processes of each side
increment a counter in two steps. No update may be lost, and both sides must make progress.

  --full            runs 2,000 sections for each pair [200]
  --only CLIENT     runs only this client; repeat the option for more
  --clients FOLDER  sets the folder of the clients' programs [../interop/bin beside this program]
  --list            lists the names of all clients and their schemes

Exits with 0 when all pairs passed, and with 1 when one failed. Skips a client if its program is missing.";

/// Enough for each side to meet the other many times in every state of the lock.
const SECTIONS: u64 = 200;

const FULL: u64 = 2_000;

fn main() -> ExitCode {
    let this = std::env::current_exe().expect("this program has a path");
    let mut options = Options {
        sections: SECTIONS,
        only: Vec::new(),
        clients: this.with_file_name("../interop/bin"),
        worker: this.with_file_name("interop-worker"),
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || {
            let value = arguments.next();
            value.unwrap_or_else(|| exit_with(&format!("{argument} needs a value")))
        };
        match argument.as_str() {
            "--full" => options.sections = FULL,
            "--only" => options.only.push(value()),
            "--clients" => options.clients = value().into(),
            "--list" => {
                for client in CLIENTS {
                    println!("{:<18} {}", client.name, client.schemes.join(" "));
                }
                return ExitCode::SUCCESS;
            }
            "--help" | "-h" => {
                println!("{HELP}");
                return ExitCode::SUCCESS;
            }
            other => exit_with(&format!("unknown argument `{other}`; see --help")),
        }
    }
    let known = |name: &&String| !CLIENTS.iter().any(|client| client.name == **name);
    if let Some(name) = options.only.iter().find(known) {
        exit_with(&format!("no client `{name}`; see --list"));
    }
    let summary = interop::run(&options, |line| println!("{line}"));
    println!("\n{summary}");
    if summary.is_good() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn exit_with(message: &str) -> ! {
    eprintln!("interop: {message}");
    std::process::exit(2);
}
