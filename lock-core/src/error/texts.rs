//! The errors of what a server refused.

use crate::error::{BackendErrorKind, LockError, foreign_key};
use lock_protocol::codec::MAX_ERROR_TEXT;
use lock_protocol::dialect::{CLOCK_TOLERANCE, Dialect};
use lock_protocol::key::LockKey;
use lock_protocol::op::{ForeignValue, Refusal, RefusalKind};
use lock_protocol::wire::{MAX_LABEL, tidy};

/// The user of a connection that does not name one.
const DEFAULT_USER: &str = "default";

/// Precedes the arguments of a command that the server doesn't know. The arguments of a login contain the password.
const ARGUMENTS: &str = ", with args beginning with";

/// What a server said, sanitized for errors and logs.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct ServerText(String);

/// Who refused a command.
pub(crate) struct RefusedBy<'a> {
    /// `None` for the default user.
    pub(crate) user: Option<&'a str>,
    pub(crate) server: &'a str,
}

impl LockError {
    /// The error for a command that the server refused, or whose reply cannot be read. For a missing right it names
    /// the user.
    pub(crate) fn refused(by: &RefusedBy<'_>, key: Option<&LockKey>, refusal: &Refusal) -> Self {
        const REJECTED: &str = "the lock server rejected the command";
        let found = &*refusal.text;
        let kind = match (refusal.kind, key) {
            (RefusalKind::WrongType, Some(key)) => return foreign_key::companion(key),
            (RefusalKind::Foreign(value), Some(key)) => {
                return match value {
                    ForeignValue::Type => foreign_key::of_type(key, found),
                    ForeignValue::Deadline => foreign_key::deadline(key, found),
                    ForeignValue::Owner => foreign_key::owner(key),
                    ForeignValue::NoRedissonLock => foreign_key::no_redisson_lock(key, found),
                    ForeignValue::CounterTooHigh => foreign_key::counter_too_high(key),
                };
            }
            (RefusalKind::Unreadable, _) => return Self::unreadable(),
            (RefusalKind::Permission, _) => {
                let user = tidy(by.user.unwrap_or(DEFAULT_USER), MAX_LABEL);
                let text = text_of(refusal);
                // The server says which right is missing. That is what the reader needs.
                let error = Self::backend(
                    BackendErrorKind::Permission,
                    format!("{REJECTED} of the user `{user}` ({text})"),
                );
                let is_native = key.is_some_and(|key| key.dialect() == Dialect::Native);
                return if is_native && denies_scripts(refusal) {
                    without_scripts(error)
                } else {
                    error
                };
            }
            (RefusalKind::NoOwnerCommands, _) => return no_owner_commands(by.server),
            (RefusalKind::ClocksDiffer, _) => return clocks_differ(found),
            (RefusalKind::MustNotRepeat, _) => {
                return Self::backend(
                    BackendErrorKind::ReleaseUnconfirmed,
                    "the release got no reply",
                );
            }
            (kind, _) => backend_kind(kind),
        };
        let context = match kind {
            // Only the words of the server say what is wrong.
            BackendErrorKind::Other => {
                let words = line_of(refusal);
                let words = words.strip_prefix("ERR ").unwrap_or(words);
                format!("{} ({REJECTED})", tidy(words, MAX_ERROR_TEXT))
            }
            _ => REJECTED.to_owned(),
        };
        let error = Self::caused(kind, context, ServerText(text_of(refusal)));
        match (error, &refusal.redirect) {
            (Self::Backend(error), Some(redirect)) => {
                Self::Backend(error.with_redirect((**redirect).clone()))
            }
            (error, _) => error,
        }
    }

    /// The error for a question that the server refused. Begins with the context.
    pub(crate) fn refused_as(context: impl Into<String>, refusal: &Refusal) -> Self {
        let text = match refusal.kind {
            RefusalKind::Unreadable => "the reply cannot be read".to_owned(),
            _ => text_of(refusal),
        };
        match backend_kind(refusal.kind) {
            // The server says which right is missing. That is what the reader needs.
            kind @ BackendErrorKind::Permission => {
                Self::backend(kind, format!("{} ({text})", context.into()))
            }
            kind => Self::caused(kind, context, ServerText(text)),
        }
    }
}

/// Returns the kind of the error for a refusal.
pub(crate) fn backend_kind(kind: RefusalKind) -> BackendErrorKind {
    match kind {
        RefusalKind::Loading => BackendErrorKind::Loading,
        RefusalKind::ScriptBusy => BackendErrorKind::ScriptBusy,
        RefusalKind::OutOfMemory => BackendErrorKind::OutOfMemory,
        RefusalKind::Misconfigured => BackendErrorKind::Misconfigured,
        RefusalKind::ClusterDown => BackendErrorKind::ClusterDown,
        RefusalKind::SlotMoving => BackendErrorKind::SlotMoving,
        RefusalKind::NoReplicas => BackendErrorKind::NoReplicas,
        RefusalKind::NotPrimary => BackendErrorKind::NotPrimary,
        RefusalKind::Authentication => BackendErrorKind::Authentication,
        RefusalKind::Permission => BackendErrorKind::Permission,
        RefusalKind::TooManyClients => BackendErrorKind::TooManyClients,
        RefusalKind::Unreadable
        | RefusalKind::NoOwnerCommands
        | RefusalKind::UnknownCommand
        | RefusalKind::UnknownScript
        | RefusalKind::WrongType
        | RefusalKind::Foreign(_) => BackendErrorKind::Unsupported,
        RefusalKind::ClocksDiffer => BackendErrorKind::ClocksDiffer,
        RefusalKind::MustNotRepeat => BackendErrorKind::ReleaseUnconfirmed,
        RefusalKind::Other => BackendErrorKind::Other,
    }
}

/// Returns what the server said, without the arguments of a command, and without characters that could forge a log
/// line.
pub(crate) fn text_of(refusal: &Refusal) -> String {
    let line = line_of(refusal);
    let (code, detail) = match line.split_once(' ') {
        Some((code, detail)) => (code, Some(detail)),
        None => (line, None),
    };
    let name = NAMES.iter().find(|(known, _)| *known == code);
    let text = match (name, detail) {
        (Some((_, name)), Some(detail)) => format!("{name}: {detail}"),
        (Some((_, name)), None) => (*name).to_owned(),
        (None, Some(detail)) => format!("{code:?}: {detail}"),
        (None, None) => format!("{code:?}"),
    };
    tidy(&text, MAX_ERROR_TEXT)
}

/// Returns what the server said, without the arguments of a command.
fn line_of(refusal: &Refusal) -> &str {
    refusal.text.split(ARGUMENTS).next().unwrap_or_default()
}

/// How error texts name the codes of a server. Alerts may look for them, so they stay as the client library, which
/// wrote them at first, has them. Any other code is shown in quotation marks.
const NAMES: [(&str, &str); 14] = [
    ("ERR", "ResponseError"),
    ("EXECABORT", "ExecAbort"),
    ("LOADING", "BusyLoading"),
    ("NOSCRIPT", "NoScript"),
    ("MOVED", "Moved"),
    ("ASK", "Ask"),
    ("TRYAGAIN", "TryAgain"),
    ("CLUSTERDOWN", "ClusterDown"),
    ("CROSSSLOT", "CrossSlot"),
    ("MASTERDOWN", "MasterDown"),
    ("READONLY", "ReadOnly"),
    ("NOTBUSY", "NotBusy"),
    ("NOSUB", "NoSub"),
    ("NOPERM", "NoPerm"),
];

/// Returns the error for a server without the commands that `ReleaseMethod::Conditional` needs.
pub(crate) fn no_owner_commands(address: &str) -> LockError {
    LockError::advised(
        BackendErrorKind::Unsupported,
        format!(
            "the lock server at {address} does not have the commands of `ReleaseMethod::Conditional` \
             (`SET` with `IFEQ`, and `DELEX` or `DELIFEQ`)"
        ),
        "use `ReleaseMethod::Auto`, or Redis 8.4 or later, or Valkey 9.0 or later",
    )
}

/// Returns the error for clocks that differ by this much. Clients of that dialect compare deadlines with their own
/// clocks, so the deadlines that one of them writes are wrong for another.
pub(crate) fn clocks_differ(difference: &str) -> LockError {
    LockError::backend(
        BackendErrorKind::ClocksDiffer,
        format!(
            "the clocks of this machine and of the lock server differ by {difference}; \
             `Dialect::{}` tolerates {CLOCK_TOLERANCE:?}",
            Dialect::DeadlineGetset
        ),
    )
}

/// Returns whether the user may not run scripts.
fn denies_scripts(refusal: &Refusal) -> bool {
    ["'evalsha'", "'eval'"]
        .iter()
        .any(|name| refusal.text.contains(name))
}

/// Adds to the advice of a native lock's error that another dialect needs no scripts.
fn without_scripts(error: LockError) -> LockError {
    match error {
        LockError::Backend(error) => LockError::Backend(error.with_advice(
            "grant the user this right; `lockctl doctor` names all that are missing, and the page \
             `redis` of the guide lists those that locks need. Without the right to run scripts, use \
             `Dialect::SetNxPx` with `ReleaseMethod::Auto`",
        )),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_protocol::resp::ServerError;

    /// Users see the same text whoever read the reply.
    #[test]
    fn text_is_that_of_the_client_library() {
        for line in [
            "ERR syntax error",
            "ERR",
            "LOADING Redis is loading the dataset in memory",
            "READONLY You can't write against a read only replica.",
            "OOM command not allowed when used memory > 'maxmemory'.",
            "NOPERM User app has no permissions to run the 'evalsha' command",
            "MISCONF Errors writing to the AOF file",
            "MOVED 6075 127.0.0.1:23001",
            "max requests limit exceeded",
            "NOAUTH Authentication required.",
            "ERR unknown command 'AUTH', with args beginning with: 'secret' ",
        ] {
            let reply = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
            let library = reply.extract_error().unwrap_err().to_string();
            let library = library.split(ARGUMENTS).next().unwrap();
            let refusal = Refusal::of(ServerError::parse(line.as_bytes()));
            assert_eq!(text_of(&refusal), tidy(library, MAX_ERROR_TEXT), "{line}");
        }
    }
}
