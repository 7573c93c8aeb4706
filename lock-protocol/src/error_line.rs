//! An error in one line, for `{:?}`.

use std::error::Error;
use std::fmt;

use crate::wire::escaped;

/// Writes an error for people, in one line: its name, its text, and the texts of its causes.
pub fn write_line(
    f: &mut fmt::Formatter<'_>,
    name: impl fmt::Display,
    error: &dyn Error,
) -> fmt::Result {
    write!(f, "{name}: {}", escaped(&error.to_string()))?;
    let mut next = error.source();
    if next.is_none() {
        return Ok(());
    }
    let mut before = " (caused by: ";
    while let Some(cause) = next {
        write!(f, "{before}{}", escaped(&cause.to_string()))?;
        before = ": ";
        next = cause.source();
    }
    f.write_str(")")
}
