//! Functions that the examples share. Each example is a program of its own.

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::str::FromStr;

use lock_core::{FencingToken, LockGuard, LockManager};

#[cfg(feature = "axum")]
pub mod http;
pub mod server;
mod table;

pub use table::Table;

/// Returns the value that follows `name` on the command line, as in `--port 8080`.
///
/// # Errors
///
/// Returns an error if the value is missing or does not have the type.
pub fn option<T: FromStr>(name: &str) -> Result<Option<T>, String> {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    if arguments.next().is_none() {
        return Ok(None);
    }
    let value = arguments.next().unwrap_or_default();
    match value.parse() {
        Ok(value) => Ok(Some(value)),
        Err(_) => Err(format!("`{value}` is not a valid value of `{name}`")),
    }
}

/// Returns the server's URL: `--redis URL`, or the environment variable `DISTRIBUTED_LOCK_URL`.
///
/// # Errors
///
/// Returns an error if both are missing.
pub fn lock_url() -> Result<String, String> {
    let given = option("--redis")?.or_else(|| std::env::var("DISTRIBUTED_LOCK_URL").ok());
    given.ok_or_else(|| {
        "there is no server; pass `--redis URL`, or set `DISTRIBUTED_LOCK_URL`".to_owned()
    })
}

/// Returns a manager for the server of [`lock_url`]. Without a URL, the locks are in this process only.
///
/// # Errors
///
/// Returns an error if the server cannot be reached.
pub async fn locks() -> Result<LockManager, Box<dyn Error>> {
    match lock_url() {
        Ok(url) => Ok(LockManager::connect(&url).await?),
        Err(_) => Ok(LockManager::in_memory()),
    }
}

/// Returns the token of a lock.
///
/// # Errors
///
/// Returns an error if the lock has no token, as in a dialect of other services.
pub fn token(guard: &LockGuard) -> Result<FencingToken, &'static str> {
    guard.fencing_token().ok_or("the lock has no fencing token")
}

/// Waits for Ctrl-C, or for the SIGTERM with which a supervisor ends a service.
pub async fn stop_signal() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
            return;
        }
    }
    _ = tokio::signal::ctrl_c().await;
}

/// Appends a line to a file that several processes share.
///
/// # Errors
///
/// Returns an error if the file cannot be written.
pub fn append(file: &Path, line: &str) -> std::io::Result<()> {
    let mut file = File::options().create(true).append(true).open(file)?;
    file.write_all(format!("{line}\n").as_bytes())
}

/// Returns the exit code of a program, and prints an error and its causes to stderr.
#[must_use]
pub fn end(result: Result<(), Box<dyn Error>>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::SUCCESS;
    };
    eprintln!("{error}");
    let mut source = error.source();
    while let Some(cause) = source {
        eprintln!("  because: {cause}");
        source = cause.source();
    }
    ExitCode::FAILURE
}

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
