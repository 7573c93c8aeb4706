//! What a server's error means to somebody who wants a lock.

use redis::{ErrorKind, RedisError};

use crate::error::{BackendErrorKind, LockError};

/// Sorts an error of the client or the server.
pub(super) fn lock_error(context: &str, error: RedisError) -> LockError {
    LockError::caused(kind_of(&error), context, error)
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
    let said = error.detail().unwrap_or_default();
    match error.code() {
        Some("LOADING") => BackendErrorKind::Loading,
        Some("BUSY") => BackendErrorKind::ScriptBusy,
        Some("OOM") => BackendErrorKind::OutOfMemory,
        Some("MISCONF") => BackendErrorKind::Misconfigured,
        Some("NOREPLICAS") => BackendErrorKind::NoReplicas,
        Some("READONLY" | "MASTERDOWN" | "UNBLOCKED") => BackendErrorKind::NotPrimary,
        Some("NOAUTH" | "WRONGPASS") => BackendErrorKind::Authentication,
        Some("NOPERM") => BackendErrorKind::Permission,
        _ if said.contains("max number of clients") => BackendErrorKind::TooManyClients,
        // Inside a script older servers say it without the code.
        _ if said.contains("can't run this command") => BackendErrorKind::Permission,
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
            .is_some_and(|said| said.contains("not an integer"))
}
