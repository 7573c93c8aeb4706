//! A flash sale in the browser: several shop instances sell one stock under a distributed lock, which
//! the page can switch off.
//!
//! ```sh
//! cargo run -p flash-sale
//! ```
//!
//! This process serves the page, sends the buyers' requests, and starts all others: the instances, and
//! a `redis-server` on a free port. README.md says what to click.

use std::error::Error;
use std::process::ExitCode;

use crate::options::{HELP, Mode};

mod control;
mod demo;
mod event;
mod experiments;
mod guard;
mod instance;
mod load;
mod lock_panel;
mod model;
mod options;
mod page;
mod plot;
mod processes;
mod redis_server;
mod run;
mod shop;
mod store;
mod threads;
mod verdict;
mod view;

type BoxError = Box<dyn Error + Send + Sync>;

/// The text before each key on the server.
const PREFIX: &str = "flash-sale:";

/// The exit code for a wrong command line.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let mode = match options::parse(std::env::args().skip(1)) {
        Ok(mode) => mode,
        Err(error) => {
            eprintln!("flash-sale: {error}");
            return ExitCode::from(USAGE);
        }
    };
    let ended = match mode {
        Mode::Help => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Mode::Guard(options) => {
            // One thread: a guard mostly waits.
            let runtime = tokio::runtime::Builder::new_current_thread();
            on(runtime, guard::run(options))
        }
        Mode::Instance(options) => on_threads(async {
            instance::run(options).await?;
            Ok(ExitCode::SUCCESS)
        }),
        Mode::Demo(options) => on_threads(async {
            run::run(options).await?;
            Ok(ExitCode::SUCCESS)
        }),
    };
    ended.unwrap_or_else(|error| {
        eprintln!("flash-sale: {error}");
        ExitCode::FAILURE
    })
}

fn on_threads(
    main: impl Future<Output = Result<ExitCode, BoxError>>,
) -> Result<ExitCode, BoxError> {
    on(tokio::runtime::Builder::new_multi_thread(), main)
}

fn on(
    mut runtime: tokio::runtime::Builder,
    main: impl Future<Output = Result<ExitCode, BoxError>>,
) -> Result<ExitCode, BoxError> {
    let runtime = runtime.enable_all().build()?;
    let ended = runtime.block_on(main);
    // Does not wait for a thread that blocks.
    runtime.shutdown_background();
    ended
}
