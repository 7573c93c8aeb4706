//! What the examples share. Each example is a program of its own, beside this directory.

use std::error::Error;
use std::process::ExitCode;
use std::str::FromStr;

/// The value behind `name` on the command line, as in `--port 8080`.
///
/// # Errors
///
/// When the value is missing or is not of the type.
pub fn option<T: FromStr>(name: &str) -> Result<Option<T>, String> {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    if arguments.next().is_none() {
        return Ok(None);
    }
    let value = arguments.next().unwrap_or_default();
    match value.parse() {
        Ok(value) => Ok(Some(value)),
        Err(_) => Err(format!("`{name}` has no use for `{value}`")),
    }
}

/// Where the locks live: `--redis URL`, else the environment's `DISTRIBUTED_LOCK_URL`.
///
/// # Errors
///
/// When there is neither.
pub fn lock_url() -> Result<String, String> {
    let given = option("--redis")?.or_else(|| std::env::var("DISTRIBUTED_LOCK_URL").ok());
    given.ok_or_else(|| {
        "say where the locks live: --redis URL, or set DISTRIBUTED_LOCK_URL".to_owned()
    })
}

/// The end of a program, which says on stderr what went wrong and why.
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
