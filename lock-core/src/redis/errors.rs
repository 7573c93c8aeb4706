//! Converts errors of the server and its client library to [`LockError`].

use std::collections::BTreeSet;
use std::fmt::Display;
#[cfg(feature = "__tls")]
use std::sync::Arc;

use redis::{ErrorKind, RedisError};

use crate::error::texts::backend_kind;
use crate::error::{BackendErrorKind, LockError};
use lock_protocol::acquisition::{Failure, FailureClass};
use lock_protocol::op::Refusal;
use lock_protocol::resp::ServerError;
use lock_protocol::wire::tidy;

/// The longest text of a server that an error or a log line contains.
pub(super) const MAX_ERROR_TEXT: usize = 300;

/// Before the arguments of a command that the server does not know. Those of a login have the password.
const ARGUMENTS: &str = ", with args beginning with";

/// Returns the text of an error, without characters that could forge a log line, and without the
/// arguments of a command.
pub(super) fn error_text(error: &RedisError) -> String {
    tidy(without_arguments(&error.to_string()), MAX_ERROR_TEXT)
}

fn without_arguments(text: &str) -> &str {
    text.split(ARGUMENTS).next().unwrap_or_default()
}

/// Returns the error for a failed connection, with address and reason in one line.
pub(super) fn connect_error(address: &str, error: &RedisError) -> LockError {
    #[cfg(feature = "__tls")]
    if let Some(error) = tls_error(address, error) {
        return error;
    }
    io_error(
        format!("cannot connect to the lock server at {address}"),
        error,
    )
}

/// As [`connect_error`], for an error of the login on a connection without TLS. A port that expects TLS
/// closes such a connection.
pub(super) fn login_error(address: &str, error: &RedisError) -> LockError {
    match connect_error(address, error) {
        LockError::Backend(known) if is_closed(error) => LockError::Backend(known.with_advice(
            "check that the server runs and accepts more clients; if that port speaks TLS, use rediss://",
        )),
        error => error,
    }
}

/// Returns whether the other side has closed the connection.
pub(super) fn is_closed(error: &RedisError) -> bool {
    error.is_io_error() && (error.is_connection_dropped() || error.is_unrecoverable_error())
}

/// Returns the error for a server that does not know the version of the protocol that the URL demands.
pub(super) fn no_resp3(address: &str, reason: &str) -> LockError {
    LockError::advised(
        BackendErrorKind::Unsupported,
        format!("the lock server at {address} does not speak RESP3: it refuses HELLO ({reason})"),
        "remove `protocol=3` from the URL: then connections speak RESP2, and waiters poll",
    )
}

/// Returns the error of a connection that is not used, because another server is the primary now.
pub(super) fn not_the_primary(address: &str) -> LockError {
    LockError::advised(
        BackendErrorKind::NotPrimary,
        format!("the lock server at {address} is not used as the primary any more"),
        "try again: the next call goes to the new primary",
    )
}

/// Returns the error of a TLS session that broke, if that is the reason.
#[cfg(feature = "__tls")]
fn tls_error(address: &str, error: &RedisError) -> Option<LockError> {
    // The client library shares its cause, and the cause of an `io::Error` is not its source.
    let cause = std::error::Error::source(error)?;
    let cause = match cause.downcast_ref::<Arc<dyn std::error::Error + Send + Sync>>() {
        Some(shared) => &**shared,
        None => cause,
    };
    super::tls::session_error(address, cause.downcast_ref()?)
}

/// Returns the error for a connection that broke, with the reason.
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

/// Combines the errors of several attempts, each behind its label, or returns a single error if all say the same. The
/// result is retryable if one of them is, and prefers what a server replied to the silence of another.
pub(super) fn of_several(
    context: impl Display,
    failures: Vec<(String, LockError)>,
) -> Option<LockError> {
    let texts: BTreeSet<_> = failures
        .iter()
        .map(|(_, error)| text_of_one(error))
        .collect();
    let are_named = texts.len() > 1;
    combined(context, failures, are_named)
}

/// As [`of_several`], with each label also if all say the same.
pub(super) fn of_each(
    context: impl Display,
    failures: Vec<(String, LockError)>,
) -> Option<LockError> {
    let are_named = failures.len() > 1;
    combined(context, failures, are_named)
}

fn combined(
    context: impl Display,
    mut failures: Vec<(String, LockError)>,
    are_named: bool,
) -> Option<LockError> {
    let each: Vec<_> = failures
        .iter()
        .map(|(label, error)| format!("{label}{}", text_of_one(error)))
        .collect();
    failures.sort_by_key(|(_, error)| (!error.is_retryable(), is_silence(error)));
    match failures.into_iter().next()?.1 {
        LockError::Backend(error) if are_named => {
            let context = format!("{context} ({})", each.join("; "));
            Some(LockError::Backend(error.of_several(context)))
        }
        error => Some(error),
    }
}

fn text_of_one(error: &LockError) -> String {
    match error {
        LockError::Backend(error) => error.context().to_owned(),
        error => error.to_string(),
    }
}

fn is_silence(error: &LockError) -> bool {
    error.is_unreachable() || error.class() == FailureClass::TimedOut
}

/// Chooses between the errors of two attempts in a row. The last one may have had too little time for a reply.
pub(super) fn more_telling(earlier: Option<LockError>, last: LockError) -> LockError {
    match earlier {
        Some(earlier) if last.class() == FailureClass::TimedOut => earlier,
        _ => last,
    }
}

/// Returns the error for a server that does not have the database of this number.
pub(super) fn no_database(address: &str, db: i64) -> LockError {
    LockError::advised(
        BackendErrorKind::InvalidUrl,
        format!("the lock server at {address} has no database {db}"),
        "the server has fewer databases: use a lower number, or raise `databases` in its redis.conf",
    )
}

/// Returns whether the server refused a SELECT because of the number.
pub(super) fn is_database_out_of_range(error: &RedisError) -> bool {
    let text = error.detail().unwrap_or_default();
    text.contains("DB index") || text.contains("out of range")
}

/// Returns whether the server refused a SELECT because it is a node of a cluster.
pub(super) fn is_select_in_cluster(error: &RedisError) -> bool {
    let text = error.detail().unwrap_or_default();
    text.contains("SELECT is not allowed in cluster mode")
}

/// Returns the reason as in `connection refused`, without the operating system's error number.
fn io_reason(error_text: &str) -> String {
    let text = error_text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    let first = letters.next().into_iter().flat_map(char::to_lowercase);
    first.chain(letters).collect()
}

/// Returns the error for a server that did not reply in time.
pub(super) fn timed_out(context: &str) -> LockError {
    LockError::backend(
        BackendErrorKind::TimedOut,
        format!("{context}: no answer in time"),
    )
}

/// Returns whether the connection must not be used again after this error.
pub(super) fn breaks_connection(error: &LockError) -> bool {
    matches!(
        error,
        LockError::Backend(error) if matches!(
            error.kind(),
            BackendErrorKind::NotPrimary | BackendErrorKind::Authentication
        )
    )
}

/// Returns what the server said; `None` for an error of the client library or the socket.
fn refusal_of(error: &RedisError) -> Option<Refusal> {
    let code = error.code()?;
    let line = match error.detail() {
        Some(detail) => format!("{code} {detail}"),
        None => code.to_owned(),
    };
    Some(Refusal::of(ServerError::parse(line.as_bytes())))
}

fn kind_of(error: &RedisError) -> BackendErrorKind {
    if let Some(refusal) = refusal_of(error) {
        return backend_kind(refusal.kind);
    }
    let text = error.detail().unwrap_or_default();
    match error.kind() {
        // The client library drops the code of a refused SELECT.
        _ if text.contains("no permissions to run") => BackendErrorKind::Permission,
        ErrorKind::AuthenticationFailed => BackendErrorKind::Authentication,
        ErrorKind::InvalidClientConfig => BackendErrorKind::InvalidUrl,
        ErrorKind::RESP3NotSupported | ErrorKind::UnexpectedReturnType | ErrorKind::Parse => {
            BackendErrorKind::Unsupported
        }
        _ if error.is_timeout() => BackendErrorKind::TimedOut,
        _ if error.is_io_error() || error.is_unrecoverable_error() => BackendErrorKind::Unreachable,
        _ => BackendErrorKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(kind: BackendErrorKind, text: &str) -> (String, LockError) {
        (format!("{text}: "), LockError::backend(kind, text))
    }

    #[test]
    fn error_of_several_attempts_quotes_each_and_is_retryable_if_one_is() {
        let (silent, lasting, replica) = (
            error(BackendErrorKind::TimedOut, "silent"),
            error(BackendErrorKind::Authentication, "lasting"),
            error(BackendErrorKind::NotPrimary, "replica"),
        );
        for (failures, kind) in [
            (
                vec![silent.clone(), lasting.clone(), replica.clone()],
                BackendErrorKind::NotPrimary,
            ),
            (vec![lasting.clone(), silent], BackendErrorKind::TimedOut),
        ] {
            let error = of_several("none", failures.clone()).unwrap();
            let LockError::Backend(backend) = &error else {
                panic!("{error:?}");
            };
            assert_eq!(backend.kind(), kind);
            for (label, _) in failures {
                assert!(backend.context().contains(&label), "{error}");
            }
        }
        // They say the same, so the labels would only be noise.
        let same = of_several("none", vec![lasting.clone(), lasting.clone()]).unwrap();
        assert_eq!(same.to_string(), lasting.1.to_string());
        // Unless the caller wants to know where it failed.
        let each = of_each("none", vec![lasting.clone(), lasting.clone()]).unwrap();
        assert!(
            each.to_string()
                .contains("(lasting: lasting; lasting: lasting)")
        );
        assert!(of_several("none", Vec::new()).is_none());
    }

    #[test]
    fn error_of_an_attempt_without_time_does_not_replace_an_earlier_one() {
        let [earlier, silent, later] = [
            (BackendErrorKind::Unreachable, "refused"),
            (BackendErrorKind::TimedOut, "silent"),
            (BackendErrorKind::NotPrimary, "replica"),
        ]
        .map(|(kind, text)| error(kind, text).1);
        for (before, last, kept) in [
            (Some(&earlier), &silent, &earlier),
            (Some(&earlier), &later, &later),
            (None, &silent, &silent),
        ] {
            let chosen = more_telling(before.cloned(), last.clone());
            assert_eq!(chosen.to_string(), kept.to_string());
        }
    }
}
