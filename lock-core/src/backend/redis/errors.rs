//! What a server's error means to somebody who wants a lock.

use std::fmt::Display;

use redis::{ErrorKind, RedisError};

use crate::error::{BackendErrorKind, LockError};
use crate::protocol::wire::tidy;

/// As much of a server's words as goes into an error or a log line.
const SAID: usize = 300;

/// What a server, or the way to it, said, tidied: it goes to errors and logs.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Cause(String);

/// The words of an error, without what could forge a log line.
pub(super) fn error_text(error: &RedisError) -> String {
    tidy(&error.to_string(), SAID)
}

/// Sorts an error of the client or the server.
pub(super) fn lock_error(context: impl Into<String>, error: &RedisError) -> LockError {
    LockError::caused(kind_of(error), context, Cause(error_text(error)))
}

/// There is no connection, and why: an operator needs address and reason in one line.
pub(super) fn connect_error(address: &str, error: &RedisError) -> LockError {
    io_error(
        format!("cannot connect to the lock server at {address}"),
        error,
    )
}

/// The same of a connection that broke.
pub(super) fn io_error(context: impl Display, error: &RedisError) -> LockError {
    let error_text = error_text(error);
    let reason = if error.is_io_error() {
        io_reason(&error_text)
    } else {
        error_text
    };
    let text = format!("{context} ({reason})");
    LockError::backend(kind_of(error), text)
}

/// As `connection refused`, without the number that the system has for it.
fn io_reason(error_text: &str) -> String {
    let text = error_text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    let first = letters.next().into_iter().flat_map(char::to_lowercase);
    first.chain(letters).collect()
}

/// The server did not answer in time.
pub(super) fn timed_out(context: &str) -> LockError {
    LockError::backend(
        BackendErrorKind::TimedOut,
        format!("{context}: no answer in time"),
    )
}

/// Whether a server that says this is not to be asked again over the same connection.
pub(super) fn breaks_connection(error: &LockError) -> bool {
    matches!(
        error,
        LockError::Backend(error) if matches!(
            error.kind(),
            BackendErrorKind::NotPrimary | BackendErrorKind::Authentication
        )
    )
}

fn kind_of(error: &RedisError) -> BackendErrorKind {
    let error_text = error.detail().unwrap_or_default();
    match error.code() {
        Some("LOADING") => BackendErrorKind::Loading,
        Some("BUSY") => BackendErrorKind::ScriptBusy,
        Some("OOM") => BackendErrorKind::OutOfMemory,
        Some("MISCONF") => BackendErrorKind::Misconfigured,
        Some("NOREPLICAS") => BackendErrorKind::NoReplicas,
        Some("READONLY" | "MASTERDOWN" | "UNBLOCKED") => BackendErrorKind::NotPrimary,
        Some("NOAUTH" | "WRONGPASS") => BackendErrorKind::Authentication,
        Some("NOPERM") => BackendErrorKind::Permission,
        _ if error_text.contains("max number of clients") => BackendErrorKind::TooManyClients,
        // Inside a script older servers say it without the code.
        _ if error_text.contains("can't run this command") => BackendErrorKind::Permission,
        _ => match error.kind() {
            ErrorKind::AuthenticationFailed => BackendErrorKind::Authentication,
            ErrorKind::InvalidClientConfig => BackendErrorKind::InvalidUrl,
            ErrorKind::RESP3NotSupported | ErrorKind::UnexpectedReturnType | ErrorKind::Parse => {
                BackendErrorKind::Unsupported
            }
            _ if error.is_timeout() => BackendErrorKind::TimedOut,
            _ if error.is_io_error() || error.is_unrecoverable_error() => {
                BackendErrorKind::Unreachable
            }
            _ => BackendErrorKind::Other,
        },
    }
}

/// Whether the server forgot the script.
pub(super) fn is_unknown_script(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

/// Whether a companion key has a type that it cannot have.
pub(super) fn is_wrong_type(error: &RedisError) -> bool {
    error.code() == Some("WRONGTYPE")
        || error
            .detail()
            .is_some_and(|error_text| error_text.contains("not an integer"))
}
