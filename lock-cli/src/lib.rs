//! The program `lockctl`. This library is not an interface: it exists for the program, for the example
//! that writes the man pages, and for the tests.
#![doc = ""]
#![doc = include_str!("../README.md")]
#![cfg_attr(not(unix), allow(dead_code, reason = "only `run` needs some of it"))]

use std::process::ExitCode;

mod args;
mod assets;
mod connect;
mod doctor;
mod duration;
mod exit;
mod failure;
mod list;
mod output;
mod page;
mod release;
#[cfg(unix)]
mod run;
mod show;
mod table;
mod text;
mod view;
mod watch;
mod wording;

use args::{Cli, Command};
use exit::Exit;
use failure::Failure;
use output::Output;

#[doc(hidden)]
pub use assets::write_assets;

/// Runs the program with the arguments of this process, and returns its exit code.
#[must_use]
pub fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    #[cfg(unix)]
    if arguments.get(1).is_some_and(|first| first == "exec") {
        return run::guard_process::main(&arguments[2..]).into();
    }
    let exit = match args::parse(&arguments) {
        Ok(cli) => {
            let output = Output::new(&cli.global);
            end(&output, dispatch(cli, &output))
        }
        Err(refused) => {
            let output = Output::before_parsing(&arguments);
            end(&output, args::explain(&refused, &arguments))
        }
    };
    exit.into()
}

/// Reports a failure, and returns the exit code.
pub(crate) fn end(output: &Output, result: Result<Exit, Failure>) -> Exit {
    result.unwrap_or_else(|failure| {
        // When stderr is closed too, the exit code is all that is left.
        let _ = output.failure(&failure);
        failure.exit
    })
}

fn dispatch(cli: Cli, output: &Output) -> Result<Exit, Failure> {
    let Cli { global, command } = cli;
    match command {
        #[cfg(unix)]
        Command::Run(run) => in_runtime(run::run(&global, run, output)),
        Command::List(args) => in_runtime(list::run(&global, &args, output)),
        Command::Show(args) => in_runtime(show::run(&global, &args, output)),
        Command::Release(args) => in_runtime(release::run(&global, &args, output)),
        Command::Watch(args) => in_runtime(watch::run(&global, &args, output)),
        Command::Doctor(args) => in_runtime(doctor::run(&global, &args, output)),
        Command::Completions { shell } => assets::completions(shell, output),
        Command::Man { command } => assets::man(command.as_deref(), output),
    }
}

/// Runs a command on a runtime with one thread. The renewals have a thread of their own.
fn in_runtime(command: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal("cannot start the runtime", &error))?;
    let ended = runtime.block_on(command);
    // The lookup of a name cannot be ended, and dropping the runtime would wait for it.
    runtime.shutdown_background();
    ended
}
