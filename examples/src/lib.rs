//! Functions that the examples share. Each example is a program of its own.

use std::error::Error;
use std::process::ExitCode;
use std::str::FromStr;

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
