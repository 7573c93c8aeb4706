//! The scenarios of a peer program, for every Rust library.
//!
//! A program is one file in `src/bin`: it implements [`Library`] and calls [`main`]. `contract.md` in
//! the folder above says what a program prints.

mod arguments;
mod raw;
mod scenarios;

use std::future::Future;
use std::process::ExitCode;
use std::time::Duration;

pub use arguments::Arguments;
pub use raw::{Raw, Raw027, RawPair, TTL_OF_RAW};

/// The error of any library, as a text for stderr.
pub type Fault = Box<dyn std::error::Error + Send + Sync>;

/// What a program says about itself.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// The name of the library's package.
    pub name: &'static str,
    /// The kind of lock, if the library has several.
    pub kind: &'static str,
    /// How a waiter learns that the lock is free, and other facts that explain the figures.
    pub notes: &'static str,
}

/// A library with locks.
///
/// Clones share the client of the library, as the tasks of one service do.
pub trait Library: Clone + Send + Sync + Sized + 'static {
    /// The two commands without the library, over the same kind of connection.
    type Raw: RawPair;

    /// Describes the library.
    const ABOUT: About;

    /// The only scenario that the program runs. Defaults to all.
    const ONLY: Option<&'static str> = None;

    /// Connects to the server.
    fn connect(arguments: &Arguments) -> impl Future<Output = Result<Self, Fault>> + Send;

    /// Connects for the raw pair.
    fn raw(&self, arguments: &Arguments) -> impl Future<Output = Result<Self::Raw, Fault>> + Send;

    /// Acquires the lock, runs the body and releases the lock.
    fn section<B>(&self, body: B) -> impl Future<Output = Result<B::Output, Fault>> + Send
    where
        B: Future + Send + 'static,
        B::Output: Send + 'static;
}

/// Runs the scenario that the arguments name.
#[must_use = "it is the exit code of the program"]
pub fn main<L: Library>() -> ExitCode {
    match Arguments::parse(std::env::args().skip(1)).and_then(|arguments| run::<L>(&arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("{fault}");
            ExitCode::FAILURE
        }
    }
}

fn run<L: Library>(arguments: &Arguments) -> Result<(), Fault> {
    let scenario = arguments.scenario.as_str();
    if let Some(only) = L::ONLY
        && scenario != only
        && scenario != "about"
    {
        return Err(format!("this program runs only the scenario `{only}`").into());
    }
    let bound = arguments.wait + Duration::from_secs(60);
    match scenario {
        "about" => {
            scenarios::about(&L::ABOUT);
            Ok(())
        }
        // One task needs one thread. Others would only add wake-ups.
        "pair" => on(
            tokio::runtime::Builder::new_current_thread(),
            bound,
            scenarios::pair::<L>(arguments),
        ),
        "contend" => on(
            tokio::runtime::Builder::new_multi_thread(),
            bound,
            scenarios::contend::<L>(arguments),
        ),
        "hold" => on(
            tokio::runtime::Builder::new_multi_thread(),
            bound,
            scenarios::hold::<L>(arguments),
        ),
        "wait" => on(
            tokio::runtime::Builder::new_multi_thread(),
            bound,
            scenarios::wait::<L>(arguments),
        ),
        other => Err(format!("unknown scenario `{other}`").into()),
    }
}

fn on(
    mut runtime: tokio::runtime::Builder,
    bound: Duration,
    scenario: impl Future<Output = Result<(), Fault>>,
) -> Result<(), Fault> {
    let runtime = runtime.enable_all().build()?;
    let bounded = async { tokio::time::timeout(bound, scenario).await };
    let result = runtime.block_on(bounded);
    // Reads of stdin block a thread of the runtime, which would otherwise delay the end.
    runtime.shutdown_background();
    result.map_err(|_| Fault::from(format!("the scenario took longer than {bound:?}")))?
}
