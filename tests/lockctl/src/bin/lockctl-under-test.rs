//! The program `lockctl`. Cargo gives a test the paths of the programs of its own package only.

use std::process::ExitCode;

fn main() -> ExitCode {
    lock_cli::main()
}
