//! The program `lockctl`.

use std::process::ExitCode;

fn main() -> ExitCode {
    lock_cli::main()
}
